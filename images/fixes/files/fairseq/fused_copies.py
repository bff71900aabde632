"""fp16 gradients into the flat fp32 ones, and fp32 parameters back, in a few launches instead of one for each.

Added by Stackyard (fix fairseq-fp16-copies). The values are the same bit for bit.
"""

import torch
from fairseq.fused import wanted

_ON = wanted("copies")


def _views(flat, parameters):
    """The stretch of a flat tensor that belongs to each parameter, in its shape."""
    sizes = [p.numel() for p in parameters]
    return [part.view_as(p) for part, p in zip(flat.split(sizes), parameters)]


def _one_flat(optimizer):
    """The flat fp32 parameter where there is only one, on a GPU, of everything that is trained."""
    flat = optimizer.fp32_params
    if not (_ON and optimizer.has_flat_params and isinstance(flat, dict) and len(flat) == 1):
        return None
    (only,) = flat.values()
    parameters = optimizer.fp16_params
    whole = only.is_cuda and sum(p.numel() for p in parameters) == only.numel()
    return only if whole and all(p.requires_grad for p in parameters) else None


def gradients(optimizer):
    """Copy all gradients up; False where fairseq's own code has to do it."""
    only = _one_flat(optimizer)
    if only is None or any(p.grad is None for p in optimizer.fp16_params):
        return False
    torch._foreach_copy_(
        _views(only.grad.data, optimizer.fp16_params), [p.grad.data for p in optimizer.fp16_params]
    )
    return True


def parameters(optimizer):
    """Copy all parameters down; False where fairseq's own code has to do it."""
    only = _one_flat(optimizer)
    if only is None:
        return False
    torch._foreach_copy_(
        [p.data for p in optimizer.fp16_params], _views(only.data, optimizer.fp16_params)
    )
    return True
