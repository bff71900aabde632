"""Read from the GPU twice in an update and go on meanwhile; fairseq's own code waits for it a dozen times.

Added by Stackyard (fix fairseq-host-waits). The numbers are the same; what is logged is read when somebody looks.
"""

import collections
import functools
import math

import stackyard_fused
import torch

_PART = stackyard_fused.part("waits")
# Where a tensor keeps its number once it was read, and its copy in the host's memory.
_NUMBER, _COPY = "_stackyard_number", "_stackyard_copy"


def _far(tensor):
    """Tell whether reading a tensor makes the host wait."""
    return _PART.on and torch.is_tensor(tensor) and tensor.is_cuda


def _pinned(tensor):
    """Return a copy in page-locked memory: to and from there the GPU copies by itself."""
    return tensor.pin_memory()


def _mark():
    """Return an event that ends when the GPU has done everything it was given so far."""
    mark = torch.cuda.Event()
    mark.record()
    return mark


def number(tensor):
    """Return the value of a tensor of one element, read once; the tensor itself where this part has no say."""
    known = getattr(tensor, _NUMBER, None)
    if known is not None or not (_far(tensor) and tensor.numel() == 1):
        return tensor if known is None else known
    _PART.ran()
    known = tensor.item()
    setattr(tensor, _NUMBER, known)
    return known


def finite(norm):
    """Tell whether a norm is neither infinite nor not a number."""
    known = number(norm)
    return bool(torch.isfinite(known).all()) if torch.is_tensor(known) else math.isfinite(known)


def share_clipped(norm, most):
    """Return 100 where a norm was clipped, else 0; a tensor where the norm is one."""
    known = number(norm)
    if torch.is_tensor(known):
        return torch.where(known > most, known.new_tensor(100), known.new_tensor(0))
    return 100.0 if known > most else 0.0


def one_if_none(size):
    """Return a number of samples to divide by: 1 in place of 0."""
    if not _far(size):
        return size or 1.0
    _PART.ran()
    return size + (size == 0)


def consistent(norms, amp, theirs):
    """Tell whether all ranks have the same norm, as fairseq's own function does, by one read."""
    if not _far(norms):
        return theirs(norms)
    _PART.ran()
    found = norms.tolist()
    if not all(math.isfinite(norm) for norm in found):
        return bool(amp)
    return max(abs(norm - found[0]) for norm in found) / (found[0] + 1e-6) < 1e-6


def all_reduce_dict(data, device, group, distributed):
    """Sum figures over ranks: one reduction, from page-locked memory and back into it while the host goes on."""
    there = {key: t for key, t in data.items() if _far(t)}
    if not there:
        return distributed.all_reduce_dict(data, device=device, group=group)
    _PART.ran()
    here = {  # a number of Python's has fp64's digits
        key: torch.as_tensor(t, dtype=torch.double) for key, t in data.items() if key not in there
    }
    parts = [t.reshape(-1).double() for t in there.values()]
    if here:
        flat = torch.cat([t.reshape(-1) for t in here.values()])
        parts.append(_pinned(flat).to(device, non_blocking=True))
    summed = torch.cat(parts)
    distributed.all_reduce(summed, group=group)
    copy = _pinned(torch.empty(summed.shape, dtype=summed.dtype)).copy_(summed, non_blocking=True)
    copied = _mark()
    tensors = {**there, **here}
    sizes = [t.numel() for t in tensors.values()]
    found = {}
    for key, part, kept in zip(tensors, summed.split(sizes), copy.split(sizes)):
        found[key] = part.view(tensors[key].shape)
        setattr(found[key], _COPY, (kept.view(tensors[key].shape), copied))
    return collections.OrderedDict((key, found[key]) for key in data)


def on_host(figure):
    """Return a summed figure, or a list or dictionary of them, from the host's memory where it is there already."""
    if type(figure) is dict:
        return {key: on_host(value) for key, value in figure.items()}
    if type(figure) is list:
        return [on_host(value) for value in figure]
    kept = getattr(figure, _COPY, None)
    if kept is None:
        return figure
    copy, copied = kept
    copied.synchronize()
    return copy


class Smoothed(collections.UserDict):
    """Hold what an update logged, as fairseq's own dictionary does; computed when first read."""

    def __init__(self, meters, left_out, more):
        self._meters, self._left_out, self._more = meters, left_out, more

    @functools.cached_property
    def data(self):
        found = self._meters.get_smoothed_values()
        found.update(self._more)
        return {key: value for key, value in found.items() if key not in self._left_out}


def smoothed(meters, left_out, **more):
    """Return values of meters without some of them, and more; at once where this part is off."""
    found = Smoothed(meters, left_out, more)
    return found if _PART.on else found.data
