# megatron, as one writes it by hand. Down to END OF THE SHARED PART it is the same in all three files
# (but for this line): the layer cache then has it once. DEVICE is cpu or cuda.
ARG BASE=benchmark/debian
ARG DEVICE=cpu
FROM ${BASE} AS built
ARG DEVICE
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3003,DL3008
RUN --mount=type=secret,id=apt.sources,target=/etc/apt/sources.list.d/caller.sources,mode=0444 \
    --mount=type=secret,id=ca.pem,mode=0444 \
    export DEBIAN_FRONTEND=noninteractive && infiniband=() \
    && if [ "$DEVICE" = cuda ]; then infiniband=(libibverbs1 ibverbs-providers librdmacm1); fi \
    && apt-get -o Acquire::https::CAInfo=/run/secrets/ca.pem update \
    && apt-get -o Acquire::https::CAInfo=/run/secrets/ca.pem install -y --no-install-recommends \
        python3 python3-pip python3-dev g++ libgomp1 openssh-server openssh-client pdsh procps \
        iproute2 rsync tini less vim-tiny "${infiniband[@]}" \
    && mkdir /tmp/text && cd /tmp/text \
    && apt-get -o Acquire::https::CAInfo=/run/secrets/ca.pem download fortunes fortunes-zh \
    && for package in *.deb; do dpkg-deb -x "$package" .; done \
    && mkdir -p /usr/local/share/stackyard/text && out=/usr/local/share/stackyard/text \
    && plain() { sed -e 's/\x1b\[[0-9;]*m//g' -e ':a' -e 's/[^\x08]\x08//' -e 'ta' \
        -e '/^%$/d' -e 's/^[[:space:]]*//' -e '/^$/d'; } \
    && cat usr/share/games/fortunes/{tang300,song100} | plain > "$out/zh.txt" \
    && cat usr/share/games/fortunes/{science,wisdom} | plain > "$out/en.txt" \
    && cp usr/share/doc/fortunes-zh/copyright "$out/zh.copyright" \
    && cp usr/share/doc/fortunes/copyright "$out/en.copyright" \
    && apt-get clean \
    && rm -rf /tmp/text /var/lib/apt/lists/* /var/cache/apt/*.bin /etc/ssh/ssh_host_*
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf,mode=0444 \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=bind,source=wheels,target=/tmp/wheels \
    --mount=type=bind,source=requirements/base.txt,target=/tmp/base.txt \
    pip install --break-system-packages --no-cache-dir --no-deps \
        --find-links /tmp/wheels -r /tmp/base.txt
# END OF THE SHARED PART

# What is compiled comes before what changes more often.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf,mode=0444 \
    --mount=type=secret,id=ca.pem,mode=0444 \
    DS_ACCELERATOR=cpu DS_BUILD_SHM_COMM=1 CXXFLAGS='-g0 -DNDEBUG' \
    pip install --break-system-packages --no-cache-dir --no-deps --no-build-isolation \
        deepspeed==0.19.8
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf,mode=0444 \
    --mount=type=secret,id=ca.pem,mode=0444 \
    --mount=type=bind,source=requirements/megatron.txt,target=/tmp/megatron.txt \
    --mount=type=bind,source=stackyard/inside/apply_fixes.py,target=/tmp/apply_fixes.py \
    --mount=type=bind,source=fixes/megatron.json,target=/tmp/fixes.json \
    pip install --break-system-packages --no-cache-dir --no-deps -r /tmp/megatron.txt \
    && python3 /tmp/apply_fixes.py /tmp/fixes.json --stage installed \
        --root /usr/local/lib/python3.11/dist-packages
COPY stackyard/inside/node.py /usr/local/lib/stackyard/
COPY stackyard/inside/sshd_config stackyard/inside/ssh_config /etc/ssh/

FROM built AS for-cpu
ENV OMP_NUM_THREADS="1"
FROM built AS for-cuda
ENV NVIDIA_VISIBLE_DEVICES="all" NVIDIA_DRIVER_CAPABILITIES="compute,utility"
# hadolint ignore=DL3006
FROM for-${DEVICE}
ENV LANG="C.UTF-8" PDSH_RCMD_TYPE="ssh" TOKENIZERS_PARALLELISM="false"
WORKDIR /root
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python3", "/usr/local/lib/stackyard/node.py"]
