"""Train fused parts of fairseq with batches of many sizes on a CPU; say how many graphs each took.

Runs in an image without a GPU or a C compiler: graphs are captured as for a GPU, then run as they
are (backend `eager`). Prints a JSON object. With `fixed` a part knows of no sizes that vary; with
`seldom` torch does not, and few batches are not of the usual size.
"""

import functools
import json
import sys

import torch
from fairseq import fused, fused_layer, fused_loss
from fairseq.models.transformer.transformer_config import TransformerConfig
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase

# Length and number of sentences: the usual batch, others, a lone sentence.
SIZES = (
    (16, 8),
    (16, 3),
    (12, 8),
    (5, 2),
    (16, 1),
    (1, 4),
    (16, 7),
    (9, 6),
    (7, 5),
    (11, 4),
    (6, 6),
    (13, 2),
    (16, 8),
)
SELDOM = ((16, 8), (16, 8), (16, 3), (16, 8), (12, 8))
torch.compile = functools.partial(torch.compile, backend="eager")
torch.manual_seed(1)
config = TransformerConfig()
config.decoder.embed_dim, config.decoder.attention_heads = 16, 2
config.decoder.ffn_embed_dim, config.dropout, config.attention_dropout = 32, 0.0, 0.0
layers = [TransformerDecoderLayerBase(config, no_encoder_attn=True).train() for _ in range(3)]
words = torch.randn(50, 16, requires_grad=True)
if "fixed" in sys.argv:
    fused_layer._fused._varying = fused_loss._fused._varying = ()
elif "seldom" in sys.argv:
    torch._dynamo.maybe_mark_dynamic = lambda tensor, dim: None


def first(value, function, given):
    """Return what was fused, or compute it the ordinary way where nothing was."""
    return function(*given) if value is None else value


def loss(compiled, length, sentences):
    """Train one batch; the parts themselves ask for a GPU, their functions do not."""
    torch.manual_seed(length)
    x = torch.randn(sentences, length, 16, requires_grad=True).transpose(0, 1)
    target = torch.randint(2, 50, (length * sentences,))
    layer_of = fused_layer._fused if compiled else fused_layer._layer
    loss_of = fused_loss._fused if compiled else fused_loss._loss
    for layer in layers:
        given = fused_layer.arguments(layer, x)
        x = first(layer_of(*given), fused_layer._layer, given)
    given = (x.transpose(0, 1) @ words.t()).reshape(-1, 50), target, 1
    found = first(loss_of(*given), fused_loss._loss, given)
    found.backward()
    return found.item()


said = []
for size in SELDOM if "seldom" in sys.argv else SIZES:
    before, value = fused._graphs(), loss(True, *size)
    off = abs(value - loss(False, *size))
    said.append({"size": size, "graphs": fused._graphs() - before, "off": off / abs(value)})
states = {p.name: [p.state, p.why] for p in (fused_layer._PART, fused_loss._PART)}
print(json.dumps({"batches": said, "states": states}))
