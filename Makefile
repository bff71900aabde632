# Aliases for a fresh machine; everything else is `invoke`.
.DEFAULT_GOAL := help
.PHONY: help environment smoke test test-all check docs figures recordings

VENV := .venv

# The project's own, kept until the lock changes or PYTHON names another interpreter.
environment:
	@scripts/make-environment $(VENV)

help: ## what can be typed here
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile

smoke: environment ## the main job: build and prove all stacks on CPU containers
	$(VENV)/bin/invoke engine smoke --gpus 0

test: environment ## see once that everything works: unit tests to real containers, hosts and releases
	scripts/test

test-all: environment ## the same with all repetition: every matrix, template and launcher on every stack
	scripts/test --all

check: environment ## the fast half of the tests: no engine needed
	scripts/test --fast

docs: environment ## the pages of docs/ and of committed reports as a site in build/docs
	@scripts/make-environment .venv-docs docs/requirements.lock
	.venv-docs/bin/sphinx-build -q -W --keep-going docs build/docs
	scripts/report-pages build/docs/reports

figures: environment ## figures of committed reports into README.md and the tables of docs
	scripts/gpu-figures

recordings: environment ## run the recorded commands again, and draw them in docs/recordings
	scripts/record-session
