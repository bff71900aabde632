"""Compute a decoder layer without cross-attention in one fused piece, with torch's own causal attention.

Added by Stackyard (fix fairseq-fused-decoder-layer). The weights are arguments, so that all layers of a model share
one compiled function. The values are those of fairseq's own code up to rounding; dropout draws other random numbers.
"""

import stackyard_fused
import torch
import torch.nn.functional as F
from fairseq.fused import Compiled

_PART = stackyard_fused.part("layer")


def _layer(x, heads, before, training, act, drops, eps, norm1, qkv, out, norm2, fc1, fc2):
    steps, batch, width = x.shape
    dropout, attention_dropout, activation_dropout = drops
    residual = x
    h = F.layer_norm(x, (width,), *norm1, eps[0]) if before else x
    (wq, wk, wv), (bq, bk, bv) = qkv
    h = F.linear(h, torch.cat((wq, wk, wv)), torch.cat((bq, bk, bv)))
    q, k, v = h.view(steps, batch, 3, heads, width // heads).permute(2, 1, 3, 0, 4)
    h = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, dropout_p=attention_dropout if training else 0.0
    )
    h = F.linear(h.permute(2, 0, 1, 3).reshape(steps, batch, width), *out)
    x = residual + F.dropout(h, dropout, training)
    if not before:
        x = F.layer_norm(x, (width,), *norm1, eps[0])
    residual = x
    h = F.layer_norm(x, (width,), *norm2, eps[1]) if before else x
    h = F.linear(h, *fc1)
    h = F.gelu(h) if act == "gelu" else F.relu(h)
    h = F.linear(F.dropout(h, activation_dropout, training), *fc2)
    x = residual + F.dropout(h, dropout, training)
    return x if before else F.layer_norm(x, (width,), *norm2, eps[1])


# Batches differ in their length (dimension 0) and in their number of sentences.
_fused = Compiled(_PART, "the decoder layer", _layer, varying=((0, 0), (0, 1)))


def _activation(layer):
    from fairseq import utils

    for name in ("relu", "gelu"):
        if layer.activation_fn is utils.get_activation_fn(name):
            return name
    return None


def _plain(layer):
    """Tell whether a layer is the ordinary one; called once for each."""
    attention = layer.self_attn
    linears = (
        attention.q_proj,
        attention.k_proj,
        attention.v_proj,
        attention.out_proj,
        layer.fc1,
        layer.fc2,
    )
    norms = (layer.self_attn_layer_norm, layer.final_layer_norm)
    extras = (
        layer.encoder_attn,
        layer.attn_ln,
        layer.c_attn,
        layer.ffn_layernorm,
        layer.w_resid,
        attention.bias_k,
    )
    drops = (layer.dropout_module, attention.dropout_module, layer.activation_dropout_module)
    return (
        _activation(layer) is not None
        and all(extra is None for extra in extras)
        and not (layer.cross_self_attention or layer.onnx_trace or layer.quant_noise)
        and not (attention.add_zero_attn or attention.use_xformers)
        and all(type(linear) is torch.nn.Linear and linear.bias is not None for linear in linears)
        and all(norm.weight is not None and norm.bias is not None for norm in norms)
        and not any(drop.apply_during_inference for drop in drops)
    )


def is_causal(mask):
    """Tell whether a mask hides exactly what comes later; looked at once for each part of each tensor that masks."""
    whole = mask if mask._base is None else mask._base
    known = whole.__dict__.setdefault("_stackyard_causal", {})
    part = (mask.storage_offset(), mask.shape, mask.stride(), mask._version)
    if part not in known:
        known[part] = mask.dim() == 2 and torch.equal(
            mask, torch.full_like(mask, float("-inf")).triu(1)
        )
    return known[part]


def is_padded_behind(mask):
    """Tell whether a mask of padding hides only what comes after all words of a sentence; looked at once for each mask."""
    known = mask.__dict__.get("_stackyard_behind")
    if known is None or known[0] != mask._version:
        behind = not (mask[:, :-1] & ~mask[:, 1:]).any()
        known = mask.__dict__["_stackyard_behind"] = (mask._version, behind)
    return known[1]


def _obstacle(layer, incremental_state, prev_self_attn_state, self_attn_mask, padding_mask):
    """Say why fairseq's own code is needed; empty where the fused one does as well."""
    if self_attn_mask is None:
        return "the attention has no mask"
    # No word sees what comes after it, and no loss counts what comes from padding.
    if padding_mask is not None and not (layer.training and is_padded_behind(padding_mask)):
        return "batches are padded in front" if layer.training else "batches are padded"
    if incremental_state is not None or prev_self_attn_state is not None:
        return "it decodes word by word"
    known = layer.__dict__.get("_stackyard_plain")
    if known is None:
        known = layer.__dict__["_stackyard_plain"] = _plain(layer)
    if not known:
        return "the layer has more than self-attention and a feed-forward part with relu or gelu"
    return "" if is_causal(self_attn_mask) else "the mask is not the causal one"


def forward(
    layer, x, incremental_state, prev_self_attn_state, self_attn_mask, self_attn_padding_mask
):
    """Return the layer's output, or None where fairseq's own code has to do it.

    Args:
        x: time x batch x channels.
        self_attn_mask: only the causal one, which fairseq's own decoders give, is fused.
    """
    if not (_PART.on and x.is_cuda):
        return None
    why = _obstacle(
        layer, incremental_state, prev_self_attn_state, self_attn_mask, self_attn_padding_mask
    )
    if why:
        if layer.training:
            _PART.unused(why)
        return None
    return _fused(*arguments(layer, x))


def arguments(layer, x):
    """Return the arguments of a layer's function."""
    a, n1, n2 = layer.self_attn, layer.self_attn_layer_norm, layer.final_layer_norm
    projections = (a.q_proj, a.k_proj, a.v_proj)
    return (
        x,
        a.num_heads,
        layer.normalize_before,
        layer.training,
        _activation(layer),
        (layer.dropout_module.p, a.dropout_module.p, layer.activation_dropout_module.p),
        (n1.eps, n2.eps),
        (n1.weight, n1.bias),
        (tuple(p.weight for p in projections), tuple(p.bias for p in projections)),
        (a.out_proj.weight, a.out_proj.bias),
        (n2.weight, n2.bias),
        (layer.fc1.weight, layer.fc1.bias),
        (layer.fc2.weight, layer.fc2.bias),
    )
