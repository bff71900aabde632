"""Checks, norms, scaling and copies of an update for all tensors at once, where DeepSpeed does them one by one.

Added by Stackyard. `stackyard_fused` says which parts are on (`norms`, `copies`, `hooks`); where none is, DeepSpeed's own
code runs. So it does for what the lists of torch are not made for: sparse gradients, empty ones, fp64, tensors of several
devices, or not of the accelerator.
"""

import inspect

import stackyard_fused
import torch
from deepspeed.accelerator import get_accelerator

NORMS, COPIES, _HOOKS = (stackyard_fused.part(name) for name in ("norms", "copies", "hooks"))
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _obstacle(tensors):
    """Say why torch cannot take all tensors as one list; empty where it can."""
    device = tensors[0].device
    if get_accelerator().on_accelerator(tensors[0]) and all(
        t.layout is torch.strided and t.dtype in FLOATS and t.device == device and t.numel()
        for t in tensors
    ):
        return ""
    return "tensors are sparse, empty, fp64, or not all on one accelerator"


def _takes(part, *lists, why=""):
    """Return whether a part does this call, and note it, or what keeps it from it: `why`, or a list of tensors."""
    if not (part.on and all(lists)):
        return False
    why = why or next(filter(None, map(_obstacle, lists)), "")
    if why:
        part.unused(why)
    else:
        part.ran()
    return not why


def _norms(tensors, dtype):
    """Return the 2-norm of each tensor in its order, in `dtype` from the first square on."""
    found = [None] * len(tensors)
    for kind in {t.dtype for t in tensors}:
        places = [place for place, t in enumerate(tensors) if t.dtype is kind]
        norms = torch._foreach_norm([tensors[p].detach() for p in places], 2.0, dtype=dtype)
        for place, norm in zip(places, norms):
            found[place] = norm
    return found


def overflow(tensors):
    """Tell whether an element is not finite, as a bool tensor of one element; None: the caller has to look itself.

    A sum of squares in fp64 is finite exactly where all elements are: none of these types has a square too large.
    """
    tensors = [t for t in tensors if t.numel()]
    if not _takes(NORMS, tensors):
        return None
    return torch.isfinite(torch.stack(_norms(tensors, torch.float64))).all().logical_not().view(1)


def norms(tensors, norm_type, dtype):
    """Return the norm of each tensor as scalars in `dtype` on the accelerator, in the tensors' order."""
    tensors = list(tensors)
    if _takes(NORMS, tensors, why=_other_norm(norm_type)):
        return _norms(tensors, dtype)
    device = get_accelerator().current_device_name()
    # Not linalg.vector_norm: it takes no sparse gradients, which DeepSpeed's own code does.
    return [t.detach().to(device).to(dtype).norm(norm_type) for t in tensors]


def _other_norm(norm_type):
    return "" if norm_type == 2.0 else f"gradients are measured by the {norm_type}-norm"


def powers(tensors, norm_type):
    """Return the sum of all norms in fp32, each to the power of the norm's type; 0.0 without tensors."""
    if _takes(NORMS, tensors, why=_other_norm(norm_type)):
        return torch.stack(_norms(tensors, torch.float32)).square().sum()
    total = 0.0
    for tensor in tensors:
        total += tensor.float().norm(norm_type) ** norm_type
    return total


def scale(tensors, factor):
    """Multiply all by a number, or by a tensor of one element, in place.

    A tensor of another type than theirs (the clip factor of DeepSpeed's bf16 optimizer) is left to DeepSpeed's own lines:
    a list takes it without dimensions only, which would round it to their type first. So the part does not claim it.
    """
    tensors = [t.data for t in tensors]
    number = torch.is_tensor(factor)
    claimed = not number or all(t.dtype is factor.dtype for t in tensors)
    if not claimed or not _takes(COPIES, tensors):
        for tensor in tensors:
            tensor.mul_(factor)
    elif number:
        torch._foreach_mul_(tensors, factor.view(()))
    elif factor != 1.0:
        torch._foreach_mul_(tensors, factor)


def copy(targets, sources):
    """Copy each source into its target."""
    targets, sources = [t.data for t in targets], [s.data for s in sources]
    if _takes(COPIES, targets, sources):
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources):
        target.copy_(source)


def gradients(masters, parameters):
    """Give each master parameter its parameter's gradient in its own type; without one, zeros."""
    pairs = []
    for master, parameter in zip(masters, parameters):
        grad = parameter.grad
        if grad is None:
            master.grad = torch.zeros_like(master, memory_format=torch.contiguous_format)
        elif grad.layout is not torch.strided:
            master.grad = grad.to(master.dtype)
        else:
            master.grad = torch.empty_like(grad, dtype=master.dtype)
            pairs.append((master.grad, grad))
    copy([made for made, _ in pairs], [grad for _, grad in pairs])


# Read once: decorators and module hooks are made when DeepSpeed is imported.
HOOKS = _HOOKS.on


def known(function_class):
    """Keep the signature of an autograd function's `forward`, which torch otherwise works out anew in each call."""
    if HOOKS:
        function_class.forward.__signature__ = inspect.signature(function_class.forward)
    return function_class


def own_parameters(module):
    """Return a module's own parameters with their names, as `named_parameters(recurse=False)` gives them; None: ask it."""
    if not HOOKS or type(module).named_parameters is not torch.nn.Module.named_parameters:
        return None
    if "named_parameters" in vars(module):
        return None
    named = {}
    for name, parameter in module._parameters.items():
        if parameter is not None:
            named.setdefault(parameter, name)
    _HOOKS.ran()
    return [(name, parameter) for parameter, name in named.items()]
