"""Compute cross entropy in one fused piece: log-softmax in fp32, without a tensor of it in memory.

Added by Stackyard (fix fairseq-fused-cross-entropy). The value is that of fairseq's own code up to rounding.
"""

import stackyard_fused
import torch.nn.functional as F
from fairseq.fused import Compiled

_PART = stackyard_fused.part("loss")


def _loss(logits, target, ignored):
    return F.cross_entropy(logits.float(), target, ignore_index=ignored, reduction="sum")


# Batches differ in their number of tokens.
_fused = Compiled(_PART, "cross entropy", _loss, varying=((0, 0), (1, 0)))


def _plain(model):
    """Tell whether a model's probabilities are the softmax of what it gives."""
    from fairseq.models import BaseFairseqModel, FairseqDecoder

    own = getattr(model.get_normalized_probs, "__func__", None)
    decoder = getattr(model, "decoder", None)
    names = ("get_normalized_probs", "get_normalized_probs_scriptable")
    return (
        own is BaseFairseqModel.get_normalized_probs
        and isinstance(decoder, FairseqDecoder)
        and all(getattr(type(decoder), name) is getattr(FairseqDecoder, name) for name in names)
        and getattr(decoder, "adaptive_softmax", None) is None
        and not decoder.onnx_trace
    )


def summed(model, net_output, sample, ignored):
    """Return the sum over all targets but `ignored`, or None where fairseq's own code has to do it."""
    logits = net_output[0]
    if not (_PART.on and logits.is_cuda):
        return None
    if not _plain(model):
        if model.training:
            _PART.unused("the model's probabilities are not the softmax of what it gives")
        return None
    target = model.get_targets(sample, net_output).view(-1)
    return _fused(logits.view(-1, logits.size(-1)), target, ignored)
