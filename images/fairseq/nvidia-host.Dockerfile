# fairseq on nvidia-host. Rendered by `invoke render`; edit images/ or templates/ instead.
# By hand, from the project's root (settings of pip, uv and apt are optional secrets, see docs/):
#   DOCKER_BUILDKIT=1 docker build -f images/fairseq/nvidia-host.Dockerfile -t stackyard/fairseq:nvidia-host .
ARG BASE=stackyard/base:nvidia-host
ARG TOOLS=ghcr.io/astral-sh/uv:0.13.9
# hadolint ignore=DL3006
FROM ${TOOLS} AS tools
# hadolint ignore=DL3006
FROM ${BASE} AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
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
    . /mnt/build.sh && unpack_system openssh-server openssh-client pdsh iproute2 rsync tini less vim-tiny openssh-sftp-server libbpf1 libbsd0 libcbor0.8 libedit2 libfido2-1 libgenders0 libmd0 libmnl0 libnsl2 libpopt0 libtirpc-common libtirpc3 libwrap0 libxtables12 libxxhash0 vim-common

# torch and everything else in the base stay as they are.
FROM system AS torch

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
    && some_of /mnt/wheel.lock packaging pip wheel > /mnt/build.lock \
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
    && some_of /mnt/wheel.lock packaging pip wheel > /mnt/build.lock \
    && build_wheel /mnt/sdist.lock /mnt/build.lock /dev/null /wheels

FROM base AS wheel-fairseq
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
    && some_of /mnt/wheel.lock cython packaging pip wheel > /mnt/build.lock \
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
    --mount=type=bind,source=images/fairseq/nvidia-host.lock,target=/mnt/stack.lock \
    --mount=type=bind,from=wheel-antlr4-python3-runtime,source=/wheels,target=/mnt/wheels/antlr4-python3-runtime \
    --mount=type=bind,from=wheel-fairscale,source=/wheels,target=/mnt/wheels/fairscale \
    --mount=type=bind,from=wheel-fairseq,source=/wheels,target=/mnt/wheels/fairseq \
    --mount=type=bind,source=stackyard/inside/leave_out.py,target=/mnt/leave_out.py \
    . /mnt/build.sh \
    && inventory > /mnt/before \
    && assert_provided cuda-bindings cuda-pathfinder cuda-toolkit filelock fsspec jinja2 markupsafe mpmath networkx numpy==2 nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx setuptools sympy torch==2.11.0 torchaudio==2.11 triton==3.6.0 typing-extensions \
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
        --only fairscale-gather-optimizer-state fairseq-broadcast-weights-only fairseq-checkpoint-weights-only fairseq-ddp-cpu fairseq-encoder-fast-path fairseq-examples-mutable-defaults fairseq-fp16-copies fairseq-fsdp-one-process fairseq-fsdp-sharded-resume fairseq-fused-adam fairseq-fused-cross-entropy fairseq-fused-decoder-layer fairseq-hf-tokenizer fairseq-host-waits fairseq-hydra-omegaconf fairseq-initialize-defaults fairseq-mutable-defaults fairseq-numpy-aliases \
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
    LD_LIBRARY_PATH="/usr/local/nvidia/lib64:/usr/local/nvidia/lib" \
    NCCL_NVLS_ENABLE="0" \
    NVSHMEM_DISABLE_NVLS="1" \
    PDSH_RCMD_TYPE="ssh" \
    TOKENIZERS_PARALLELISM="false" \
    TORCH_SYMM_MEM_DISABLE_MULTICAST="1"
WORKDIR /root
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python3", "/usr/local/lib/stackyard/node.py"]
