#!/bin/bash
# A stand-in: says much on both streams, then becomes what it was given.
printf '\n=============\n== PyTorch ==\n=============\n\nNVIDIA Release %s\n' "$NVIDIA_PYTORCH_VERSION"
printf 'WARNING: The NVIDIA Driver was not detected. GPU functionality will not be available.\n' >&2
if [[ $# -eq 0 ]]; then exec /bin/bash; fi
exec "$@"
