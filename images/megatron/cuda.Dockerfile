# megatron on cuda. Rendered by `invoke render`; edit images/ or templates/ instead.
# By hand, from the project's root (settings of pip, uv and apt are optional secrets, see docs/):
#   DOCKER_BUILDKIT=1 docker build -f images/megatron/cuda.Dockerfile -t stackyard/megatron:cuda .
ARG BASE=stackyard/base:cuda
ARG TOOLS=ghcr.io/astral-sh/uv:0.13.9
ARG PACKAGES=stackyard/packages:cuda
# hadolint ignore=DL3006
FROM ${TOOLS} AS tools
# hadolint ignore=DL3006
FROM ${PACKAGES} AS debian
# hadolint ignore=DL3006
FROM ${BASE} AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
USER 0

FROM base AS text
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=bind,from=debian,target=/mnt/packages \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=locked,id=stackyard-apt \
    . /mnt/build.sh && unpack_text /text fortunes fortunes-zh

FROM base AS system

# The layer that every stack on this base shares.
FROM system AS torch
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=shared,id=stackyard-python \
    --mount=type=bind,source=images/bases/cuda.lock,target=/mnt/base.lock \
    --mount=type=bind,source=stackyard/inside/leave_out.py,target=/mnt/leave_out.py \
    . /mnt/build.sh \
    && inventory > /mnt/before \
    && some_of /mnt/base.lock 'nvidia-*-cu13' triton > /mnt/some.lock \
    && install_locked /mnt/some.lock '' \
    && python3 /mnt/leave_out.py --before /mnt/before torch/bin '**/tests' '**/test' 'nvidia/**/libcusolverMg.so.*' 'nvidia/**/libnvrtc.alt.so.*' 'nvidia/**/*.a' 'triton/**/*.a' \
        --keep torch/bin/torch_shm_manager \
        --keep mpmath/tests/__init__.py \
        --keep mpmath/tests/runtests.py \
        --keep torch/include \
    && inventory
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=shared,id=stackyard-python \
    --mount=type=bind,source=images/bases/cuda.lock,target=/mnt/base.lock \
    --mount=type=bind,source=stackyard/inside/leave_out.py,target=/mnt/leave_out.py \
    . /mnt/build.sh \
    && inventory > /mnt/before \
    && some_of /mnt/base.lock 'nvidia-*' 'cuda-*' > /mnt/some.lock \
    && install_locked /mnt/some.lock '' \
    && python3 /mnt/leave_out.py --before /mnt/before torch/bin '**/tests' '**/test' 'nvidia/**/libcusolverMg.so.*' 'nvidia/**/libnvrtc.alt.so.*' 'nvidia/**/*.a' 'triton/**/*.a' \
        --keep torch/bin/torch_shm_manager \
        --keep mpmath/tests/__init__.py \
        --keep mpmath/tests/runtests.py \
        --keep torch/include \
    && inventory
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=shared,id=stackyard-python \
    --mount=type=bind,source=images/bases/cuda.lock,target=/mnt/base.lock \
    --mount=type=bind,source=stackyard/inside/leave_out.py,target=/mnt/leave_out.py \
    . /mnt/build.sh \
    && inventory > /mnt/before \
    && install_locked /mnt/base.lock '' \
    && python3 /mnt/leave_out.py --before /mnt/before torch/bin '**/tests' '**/test' 'nvidia/**/libcusolverMg.so.*' 'nvidia/**/libnvrtc.alt.so.*' 'nvidia/**/*.a' 'triton/**/*.a' \
        --keep torch/bin/torch_shm_manager \
        --keep mpmath/tests/__init__.py \
        --keep mpmath/tests/runtests.py \
        --keep torch/include \
    && warm torch torch.distributed.run torch.nn.parallel torch.utils.data

# A compiler for the wheels that need one; it stays in this stage.
FROM base AS compiler
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=bind,from=debian,target=/mnt/packages \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=locked,id=stackyard-apt \
    . /mnt/build.sh && apt_install g++ python3-dev

FROM compiler AS wheel-deepspeed
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=tools,target=/mnt/tools \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=secret,id=ca.pem,target=/mnt/secrets/ca.pem \
    --mount=type=secret,id=uv.toml,target=/mnt/secrets/uv.toml \
    --mount=type=secret,id=pip.conf,target=/mnt/secrets/pip.conf \
    --mount=type=secret,id=apt.sources,target=/mnt/secrets/apt.sources \
    --mount=type=cache,target=/mnt/cache,sharing=shared,id=stackyard-python \
    --mount=type=bind,from=torch,source=/usr/local/lib/python3.11/dist-packages,target=/usr/local/lib/python3.11/dist-packages \
    --mount=type=bind,source=stackyard/inside/apply_fixes.py,target=/mnt/apply_fixes.py \
    --mount=type=bind,source=images/wheels/deepspeed.lock,target=/mnt/wheel.lock \
export CXXFLAGS='-g0 -DNDEBUG' && export DS_ACCELERATOR=cpu && export DS_BUILD_SHM_COMM=1 && export TORCH_SITE=/usr/local/lib/python3.11/dist-packages && . /mnt/build.sh \
    && some_of /mnt/wheel.lock deepspeed > /mnt/sdist.lock \
    && some_of /mnt/wheel.lock packaging pip setuptools wheel > /mnt/build.lock \
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
    --mount=type=bind,source=images/megatron/cuda.lock,target=/mnt/stack.lock \
    --mount=type=bind,from=wheel-deepspeed,source=/wheels,target=/mnt/wheels/deepspeed \
    --mount=type=bind,source=stackyard/inside/leave_out.py,target=/mnt/leave_out.py \
    . /mnt/build.sh \
    && inventory > /mnt/before \
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
    --mount=type=bind,source=images/megatron/fixes.json,target=/mnt/fixes.json \
    . /mnt/build.sh \
    && python3 /mnt/apply_fixes.py /mnt/fixes.json --stage installed \
        --root "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
        --only deepspeed-fused-copies deepspeed-fused-norms deepspeed-numpy-layer-seed deepspeed-pipeline-grad-clip deepspeed-zero3-hooks \
    && warm deepspeed.launcher.runner deepspeed.launcher.launch deepspeed.runtime.pipe.engine deepspeed.comm.mori deepspeed.module_inject.auto_ep_layer deepspeed.ops.op_builder.all_ops setuptools._distutils.compilers.C.cygwin setuptools._distutils.compilers.C.unix setuptools._distutils.compilers.C.zos torch.utils.serialization torch.utils.tensorboard torch.profiler._cupti_monitor megatron.core.datasets.gpt_dataset megatron.core.datasets.helpers megatron.core.models.gpt.gpt_layer_specs megatron.core.datasets.blended_megatron_dataset_builder
# Real text, and a node that waits for its mesh: sshd is configured, no key of any kind is inside.
RUN --mount=type=tmpfs,target=/mnt \
    --mount=type=bind,from=text,source=/text,target=/mnt/text \
    --mount=type=bind,source=stackyard/inside/build.sh,target=/mnt/build.sh \
    --mount=type=bind,source=stackyard/inside/node.py,target=/mnt/inside/node.py \
    --mount=type=bind,source=stackyard/inside/sshd_config,target=/mnt/inside/sshd_config \
    --mount=type=bind,source=stackyard/inside/ssh_config,target=/mnt/inside/ssh_config \
    . /mnt/build.sh && install_runtime
ENV LANG="C.UTF-8" \
    NVIDIA_DRIVER_CAPABILITIES="compute,utility" \
    NVIDIA_VISIBLE_DEVICES="all" \
    PDSH_RCMD_TYPE="ssh" \
    TOKENIZERS_PARALLELISM="false"
WORKDIR /root
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python3", "/usr/local/lib/stackyard/node.py"]
