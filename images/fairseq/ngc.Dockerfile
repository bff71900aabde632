# fairseq on ngc. Rendered by `invoke render`; edit images/ or templates/ instead.
# NEVER BUILT: no image has been built on it yet: its registry could not be reached from where these definitions were written
# By hand, from the project's root (settings of pip, uv and apt are optional secrets, see docs/):
#   DOCKER_BUILDKIT=1 docker build -f images/fairseq/ngc.Dockerfile -t stackyard/fairseq:ngc .
ARG BASE=nvcr.io/nvidia/pytorch:25.12-py3
ARG TOOLS=ghcr.io/astral-sh/uv:0.13.9
# hadolint ignore=DL3006
FROM ${TOOLS} AS tools
# hadolint ignore=DL3006
FROM ${BASE} AS base
SHELL ["/usr/bin/env", "-u", "BASH_ENV", "/bin/bash", "-euo", "pipefail", "-c"]
# hadolint shell=/bin/bash
USER 0

FROM base AS text
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=locked,id=stackyard-apt \
    . /mnt/build.sh && unpack_text /text fortunes fortunes-zh

FROM base AS system
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=locked,id=stackyard-apt \
    . /mnt/build.sh && apt_install openssh-server openssh-client pdsh procps iproute2 rsync tini less vim-tiny

# torch and everything else in the base stay as they are.
FROM system AS torch

# A compiler for the wheels that need one; it stays in this stage.
FROM base AS compiler
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=locked,id=stackyard-apt \
    . /mnt/build.sh && apt_install g++ python3-dev

FROM base AS wheel-antlr4-python3-runtime
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=shared,id=stackyard-python \
    --mount=type=bind,source=stackyard/inside/apply_fixes.py,target=/mnt/apply_fixes.py \
    --mount=type=bind,source=images/wheels/antlr4-python3-runtime.lock,target=/mnt/wheel.lock \
export HIDE_TORCH=1 && . /mnt/build.sh \
    && some_of /mnt/wheel.lock antlr4-python3-runtime > /mnt/sdist.lock \
    && some_of /mnt/wheel.lock packaging pip setuptools wheel > /mnt/build.lock \
    && build_wheel /mnt/sdist.lock /mnt/build.lock /dev/null /wheels

FROM base AS wheel-fairscale
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=shared,id=stackyard-python \
    --mount=type=bind,source=stackyard/inside/apply_fixes.py,target=/mnt/apply_fixes.py \
    --mount=type=bind,source=images/wheels/fairscale.lock,target=/mnt/wheel.lock \
export HIDE_TORCH=1 && . /mnt/build.sh \
    && some_of /mnt/wheel.lock fairscale > /mnt/sdist.lock \
    && some_of /mnt/wheel.lock packaging pip setuptools wheel > /mnt/build.lock \
    && build_wheel /mnt/sdist.lock /mnt/build.lock /dev/null /wheels

FROM compiler AS wheel-fairseq
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=shared,id=stackyard-python \
    --mount=type=bind,source=stackyard/inside/apply_fixes.py,target=/mnt/apply_fixes.py \
    --mount=type=bind,source=images/wheels/fairseq.lock,target=/mnt/wheel.lock \
export HIDE_TORCH=1 && . /mnt/build.sh \
    && some_of /mnt/wheel.lock fairseq > /mnt/sdist.lock \
    && some_of /mnt/wheel.lock cython numpy packaging pip setuptools wheel > /mnt/build.lock \
    && build_wheel /mnt/sdist.lock /mnt/build.lock /dev/null /wheels

# The packages as they come. `invoke prove` starts from here to have each fix left out.
FROM torch AS packages
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=shared,id=stackyard-python \
    --mount=type=bind,source=images/fairseq/ngc.lock,target=/mnt/stack.lock \
    --mount=type=bind,from=wheel-antlr4-python3-runtime,source=/wheels,target=/mnt/wheels/antlr4-python3-runtime \
    --mount=type=bind,from=wheel-fairscale,source=/wheels,target=/mnt/wheels/fairscale \
    --mount=type=bind,from=wheel-fairseq,source=/wheels,target=/mnt/wheels/fairseq \
    --mount=type=bind,source=stackyard/inside/leave_out.py,target=/mnt/leave_out.py \
    . /mnt/build.sh \
    && inventory > /mnt/before \
    && assert_provided torch==2.10.0a0+b4e4ee81d3.nv25.12 \
    && install_locked /mnt/stack.lock \
    && install_built \
    && python3 /mnt/leave_out.py --before /mnt/before torch/bin '**/tests' '**/test' 'nvidia/**/libcusolverMg.so.*' 'nvidia/**/libnvrtc.alt.so.*' 'nvidia/**/*.a' 'triton/**/*.a' \
        --keep torch/bin/torch_shm_manager \
        --keep mpmath/tests/__init__.py \
        --keep mpmath/tests/runtests.py \
        --keep torch/include \
    && assert_unchanged /mnt/before

# Fixes, and the bytecode of what is used, in a step of their own: it is small and quickly done again.
FROM packages AS image
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=bind,source=stackyard/inside/apply_fixes.py,target=/mnt/apply_fixes.py \
    --mount=type=bind,source=images/fairseq/fixes.json,target=/mnt/fixes.json \
    . /mnt/build.sh \
    && python3 /mnt/apply_fixes.py /mnt/fixes.json --stage installed \
        --root "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
        --only fairscale-gather-optimizer-state fairseq-broadcast-weights-only fairseq-checkpoint-weights-only fairseq-ddp-cpu fairseq-encoder-fast-path fairseq-examples-mutable-defaults fairseq-fp16-copies fairseq-fsdp-one-process fairseq-fsdp-sharded-resume fairseq-fused-adam fairseq-fused-cross-entropy fairseq-fused-decoder-layer fairseq-hf-tokenizer fairseq-host-waits fairseq-hydra-omegaconf fairseq-initialize-defaults fairseq-mutable-defaults fairseq-torchaudio \
    && warm fairseq_cli.train fairseq_cli.preprocess fairseq_cli.generate fairseq_cli.eval_lm torch._dynamo torch.distributed.elastic.rendezvous.static_tcp_rendezvous torch.profiler._cupti_monitor torch.utils.serialization omegaconf._impl antlr4.LL1Analyzer hydra._internal.core_plugins.bash_completion hydra._internal.core_plugins.basic_launcher hydra._internal.core_plugins.basic_sweeper hydra._internal.core_plugins.file_config_source hydra._internal.core_plugins.fish_completion hydra._internal.core_plugins.importlib_resources_config_source hydra._internal.core_plugins.structured_config_source hydra._internal.core_plugins.zsh_completion
# Real text, and a node that waits for its mesh: sshd is configured, no key of any kind is inside.
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=text,source=/text,target=/mnt/text \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=bind,source=stackyard/inside/node.py,target=/mnt/inside/node.py \
    --mount=type=bind,source=stackyard/inside/sshd_config,target=/mnt/inside/sshd_config \
    --mount=type=bind,source=stackyard/inside/ssh_config,target=/mnt/inside/ssh_config \
    . /mnt/build.sh && install_runtime
ENV LANG="C.UTF-8" \
    PDSH_RCMD_TYPE="ssh" \
    TOKENIZERS_PARALLELISM="false"
WORKDIR /root
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/nvidia/nvidia_entrypoint.sh"]
CMD ["python3", "/usr/local/lib/stackyard/node.py"]
