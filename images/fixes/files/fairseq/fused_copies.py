"""Copy fp16 gradients into the flat fp32 ones, and fp32 parameters back, in a few launches instead of one for each.

Added by Stackyard (fix fairseq-fp16-copies). The values are the same bit for bit.
"""

import stackyard_fused
import torch

_PART = stackyard_fused.part("copies")


# Where an optimizer keeps the stretches of its flat tensors: cutting them takes longer than copying.
_KEPT = "_stackyard_views"


def _views(flat, parameters):
    """Return the stretch of a flat tensor that belongs to each parameter, in its shape."""
    sizes = [p.numel() for p in parameters]
    return [part.view_as(p) for part, p in zip(flat.split(sizes), parameters)]


def _kept_views(optimizer, name, flat):
    """Return the stretches of one of an optimizer's flat tensors, cut again when it lies elsewhere."""
    kept = optimizer.__dict__.setdefault(_KEPT, {})
    parameters = optimizer.fp16_params
    known = (flat.data_ptr(), flat.numel(), len(parameters))
    if kept.get(name, (None,))[0] != known:
        kept[name] = (known, _views(flat, parameters))
    return kept[name][1]


def _one_flat(optimizer):
    """Return the flat fp32 parameter where there is only one, on a GPU, of everything that is trained."""
    flat, parameters = optimizer.fp32_params, optimizer.fp16_params
    if not (_PART.on and parameters and parameters[0].is_cuda):
        return None
    if not (optimizer.has_flat_params and isinstance(flat, dict) and len(flat) == 1):
        _PART.unused("parameters are not one flat fp32 tensor")
        return None
    (only,) = flat.values()
    whole = only.is_cuda and sum(p.numel() for p in parameters) == only.numel()
    if whole and all(p.requires_grad for p in parameters):
        return only
    _PART.unused("the flat fp32 tensor is not of everything that is trained, on a GPU")
    return None


def gradients(optimizer):
    """Copy all gradients up; False where fairseq's own code has to do it."""
    only = _one_flat(optimizer)
    found = [p.grad for p in optimizer.fp16_params]
    if only is None:
        return False
    if any(grad is None for grad in found):
        _PART.unused("a parameter has no gradient")
        return False
    with torch.no_grad():
        torch._foreach_copy_(_kept_views(optimizer, "gradients", only.grad.data), found)
    _PART.ran()
    return True


def parameters(optimizer):
    """Copy all parameters down; False where fairseq's own code has to do it."""
    only = _one_flat(optimizer)
    if only is None:
        return False
    views = _kept_views(optimizer, "parameters", only.data)
    torch._foreach_copy_([p.data for p in optimizer.fp16_params], views)
    return True
