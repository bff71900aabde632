# Aliases for a fresh machine; everything else is `invoke`.
.DEFAULT_GOAL := help
.PHONY: help smoke test test-all check figures

# The project's own environment, made once for each state of the lock.
VENV := .venv
READY := $(VENV)/.ready

$(READY): requirements.lock scripts/make-environment
	scripts/make-environment $(VENV)

help: ## what can be typed here
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

smoke: $(READY) ## the main job: build and prove all stacks on CPU containers
	$(VENV)/bin/invoke engine smoke --gpus 0

test: $(READY) ## see once that everything works: unit tests to real containers, hosts and releases
	scripts/test

test-all: $(READY) ## the same with all repetition: every matrix, template and launcher on every stack
	scripts/test --all

check: $(READY) ## the fast half of the tests: no engine needed
	scripts/test --fast

figures: ## figures of the reports in docs/reports into README.md, docs/gpus.md and docs/speed.md
	scripts/gpu-figures
