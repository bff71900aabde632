"""Build a GPT as a DeepSpeed pipeline of Megatron tensor-parallel layers.

On GPUs all layers are Megatron's own; on CPU ranks the core attention is not. Owns the
architecture. It imports nothing of the launch: ranks and groups come from Megatron's parallel
state, which the caller has initialised.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from megatron.core import tensor_parallel
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

LAYERS = 2
HIDDEN = 64
HEADS = 4
SEED = 1234
# Megatron pads vocabularies so that every tensor-parallel size divides them; fixed here, or the
# layouts would not hold the same model.
VOCABULARY_MULTIPLE = 128


class CausalAttention(nn.Module):
    """Compute core attention with torch's SDPA; Megatron's own buffers need a CUDA device."""

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        super().__init__()
        self._dropout = config.attention_dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Attend; [sequence, batch, heads, head size] in, heads merged out."""
        # [s, b, heads, size] -> [b, heads, s, size]
        inputs = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        dropout = self._dropout if self.training else 0.0
        out = nn.functional.scaled_dot_product_attention(*inputs, dropout_p=dropout, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(2).contiguous()


class Embedding(LanguageModelEmbedding):
    """Embed (tokens, positions) as hidden states [sequence, batch, hidden]: the first layer."""

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """Take both inputs as one argument, as the pipeline passes them."""
        tokens, positions = inputs
        return super().forward(tokens, positions)


class Layer(nn.Module):
    """Wrap one Megatron transformer layer, with a single tensor in and out."""

    def __init__(self, config: TransformerConfig, number: int) -> None:
        super().__init__()
        self.layer = build_module(_layer_spec(), config=config, layer_number=number)

    def forward(self, hidden: Tensor) -> Tensor:
        """Drop the cross-attention context that a decoder-only layer does not have."""
        out, _ = self.layer(hidden, attention_mask=None)
        return out


class Head(nn.Module):
    """Apply the final norm and the vocabulary-parallel output projection: the last layer."""

    def __init__(self, config: TransformerConfig, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layernorm_epsilon)
        self.projection = tensor_parallel.ColumnParallelLinear(
            config.hidden_size,
            vocabulary,
            config=config,
            init_method=config.init_method,
            bias=False,
            gather_output=False,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits of this rank's part of the vocabulary, [sequence, batch, part]."""
        logits, _ = self.projection(self.norm(hidden))
        return logits


def build_pipeline(
    vocab_size: int, sequence: int, *, tp: int, pp: int, dp: int, dtype: torch.dtype
) -> PipelineModule:
    """Build the model over `tp` x `pp` x `dp` ranks, with the same initial values in any layout."""
    config = _config(tp, dtype)
    vocabulary = -(-vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    return PipelineModule(
        layers=[
            LayerSpec(Embedding, config, vocabulary, sequence),
            *(LayerSpec(Layer, config, number + 1) for number in range(LAYERS)),
            LayerSpec(Head, config, vocabulary),
        ],
        topology=PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp),
        loss_fn=_loss,
        # A seed per layer: otherwise a stage's values depend on the number of layers before it
        # there.
        seed_layers=True,
        base_seed=SEED,
    )


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over all tokens; Megatron's samples are full, so none is masked."""
    per_token = tensor_parallel.vocab_parallel_cross_entropy(logits, labels.t().contiguous())
    return torch.mean(per_token)


def _layer_spec() -> ModuleSpec:
    spec = get_gpt_layer_local_spec()
    if torch.cuda.is_available():
        return spec
    attention = dataclasses.replace(
        spec.submodules.self_attention.submodules, core_attention=CausalAttention
    )
    spec.submodules.self_attention.submodules = attention
    return spec


def _config(tp: int, dtype: torch.dtype) -> TransformerConfig:
    # pipeline_model_parallel_size stays 1: DeepSpeed cuts the pipeline, and Megatron would
    # otherwise number the layers of a stage a second time.
    return TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        tensor_model_parallel_size=tp,
        # On GPUs, too, so that the values are those of CPU ranks.
        use_cpu_initialization=True,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        bias_activation_fusion=False,
        gradient_accumulation_fusion=False,
    )
