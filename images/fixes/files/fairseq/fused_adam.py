"""Run one kernel for each parameter that Adam updates, instead of one for each operation.

Added by Stackyard (fix fairseq-fused-adam). The same operations in the same order as fairseq's own, in fp32.
"""

import math

import stackyard_fused
import torch
from fairseq.fused import Compiled

_PART = stackyard_fused.part("adam")


def _update(p, g, m, v, beta1, beta2, eps, size, decay):
    new_m = m * beta1 + g * (1 - beta1)
    new_v = v * beta2 + g * g * (1 - beta2)
    new_p = p - p * decay
    p.copy_(new_p - size * (new_m / (new_v.sqrt() + eps)))
    m.copy_(new_m)
    v.copy_(new_v)
    return True


_fused = Compiled(_PART, "Adam", _update)


def _ordinary(tensor):
    return (
        tensor.is_cuda
        and tensor.dtype is torch.float32
        and tensor.is_contiguous()
        and not tensor.is_sparse
    )


def sizes(group, number):
    """Return how far a parameter goes in its step of that number, and which share of it decays."""
    beta1, beta2 = group["betas"]
    size = group["lr"] * math.sqrt(1 - beta2**number) / (1 - beta1**number)
    return size, group["weight_decay"] * group["lr"]


def step(parameter, group, state):
    """Tell whether the parameter was updated; if not, fairseq's own code has to do it."""
    grad = parameter.grad.data
    if not (_PART.on and parameter.is_cuda):
        return False
    if group.get("amsgrad", False):
        _PART.unused("amsgrad is on")
        return False
    if not (_ordinary(parameter.data) and _ordinary(grad)):
        _PART.unused("parameters or gradients are not fp32 on a GPU")
        return False
    if not state:
        state["step"] = 0
        state["exp_avg"] = torch.zeros_like(parameter.data)
        state["exp_avg_sq"] = torch.zeros_like(parameter.data)
    if not (_ordinary(state["exp_avg"]) and _ordinary(state["exp_avg_sq"])):
        _PART.unused("Adam's moments are not fp32 on a GPU")
        return False
    number = state["step"] + 1
    # As tensors: other values are then no other program.
    both = torch.tensor(sizes(group, number), pin_memory=True)
    size, decay = both.to(grad.device, non_blocking=True)
    flat = [t.view(-1) for t in (parameter.data, grad, state["exp_avg"], state["exp_avg_sq"])]
    with torch.no_grad():
        done = _fused(*flat, *group["betas"], group["eps"], size, decay)
    if done:
        state["step"] = number
    return bool(done)
