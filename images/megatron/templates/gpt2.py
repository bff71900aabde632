"""Build GPT-2 of Megatron tensor-parallel layers, as a DeepSpeed pipeline or as one module.

Owns the architecture: learned positions, pre-norm layers, output tied to the word embedding. It
imports nothing of the launch: ranks and groups come from Megatron's parallel state, which the
caller has initialised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils.checkpoint
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from megatron.core import parallel_state, tensor_parallel
from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

SEED = 1234
# Megatron pads vocabularies so that every tensor-parallel size divides them.
VOCABULARY_MULTIPLE = 128
# transformers' name of GPT-2's GELU, by tanh; megatron-core's fused one is always that.
ACTIVATION = "gelu_new"
gelu = functools.partial(nn.functional.gelu, approximate="tanh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Hold the size of the model, and how it is computed.

    Attributes:
        recompute: keep each layer's input alone for the backward pass.
        fusions: use megatron-core's kernels for bias and GELU, bias and dropout, cross entropy.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    dropout: float
    recompute: bool
    fusions: bool

    @property
    def padded(self) -> int:
        """Return the rows of the word embedding."""
        return -(-self.vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


class CausalAttention(nn.Module):
    """Compute core attention with torch's SDPA, which keeps no scores.

    Megatron's own needs Transformer Engine for that.
    """

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        super().__init__()
        self._dropout = config.attention_dropout
        # Ranks of one group hold different heads: each draws dropout of its own. Where a rank has
        # all heads, the default generator does, and the host is spared two changes of its state.
        self._own_draws = config.tensor_model_parallel_size > 1

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Attend; [sequence, batch, heads, head size] in, heads merged out."""
        inputs = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        dropout = self._dropout if self.training else 0.0
        draws = (
            tensor_parallel.get_cuda_rng_tracker().fork()
            if self._own_draws
            else contextlib.nullcontext()
        )
        with draws:
            out = nn.functional.scaled_dot_product_attention(
                *inputs, dropout_p=dropout, is_causal=True
            )
        return out.permute(2, 0, 1, 3).flatten(2).contiguous()


class Words(tensor_parallel.VocabParallelEmbedding):  # type: ignore[misc]
    """Embed tokens [batch, sequence] as [sequence, batch, hidden]: the first layer."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up the tokens' embeddings."""
        return super().forward(tokens).transpose(0, 1).contiguous()


class Places(nn.Module):
    """Add the learned embedding of each position: the second layer."""

    def __init__(self, config: TransformerConfig, sequence: int) -> None:
        super().__init__()
        self.table = nn.Embedding(sequence, config.hidden_size, dtype=config.params_dtype)
        config.init_method(self.table.weight)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Add the embeddings, and apply dropout."""
        places = torch.arange(hidden.shape[0], device=hidden.device)
        return self.dropout(hidden + self.table(places).unsqueeze(1))


class Layer(nn.Module):
    """Wrap one Megatron transformer layer, with a single tensor in and out."""

    def __init__(self, config: TransformerConfig, number: int, recompute: bool) -> None:
        super().__init__()
        self.layer = build_module(_layer_spec(), config=config, layer_number=number)
        self.recompute = recompute

    def forward(self, hidden: Tensor) -> Tensor:
        """Run the layer; with `recompute`, keep its input alone for the backward pass."""
        if not (self.recompute and self.training and hidden.requires_grad):
            return self._run(hidden)
        if hidden.is_cuda:  # Megatron's own also restores its random states: the same dropout
            return tensor_parallel.checkpoint(self._run, False, hidden)
        return torch.utils.checkpoint.checkpoint(self._run, hidden, use_reentrant=False)

    def _run(self, hidden: Tensor) -> Tensor:
        out, _ = self.layer(hidden, attention_mask=None)
        return out


class Norm(nn.LayerNorm):
    """Apply the norm before the output; it is no `Layer`, by which the pipeline is cut."""


def logits_of(words: Words, hidden: Tensor) -> Tensor:
    """Return logits of this rank's part of the vocabulary: [sequence, batch, part]."""
    copied = tensor_parallel.copy_to_tensor_model_parallel_region(hidden)
    return nn.functional.linear(copied, words.weight)


def fused_loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return `loss_of` by megatron-core's kernels, which give the gradient in bf16."""
    group = parallel_state.get_tensor_model_parallel_group()
    per_token = fused_vocab_parallel_cross_entropy(logits, labels.t().contiguous(), group)
    return torch.mean(per_token)


def choose_loss(shape: Shape, dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the fused loss, where its gradient has the precision of the model."""
    return fused_loss_of if shape.fusions and dtype is torch.bfloat16 else loss_of


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over all tokens; Megatron's samples are full, so none is masked."""
    per_token = tensor_parallel.vocab_parallel_cross_entropy(
        logits.float(), labels.t().contiguous()
    )
    return torch.mean(per_token)


def build_pipeline(
    shape: Shape, *, tp: int, pp: int, dp: int, dtype: torch.dtype
) -> PipelineModule:
    """Build the model over `tp` x `pp` x `dp` ranks, with the same initial values in any layout."""
    config = _config(shape, tp, dtype)

    def words(forward: Any = None) -> TiedLayerSpec:
        return TiedLayerSpec("words", Words, shape.padded, shape.hidden, forward_fn=forward,
                             init_method=config.init_method, config=config)  # fmt: skip

    layers = (LayerSpec(Layer, config, n + 1, shape.recompute) for n in range(shape.layers))
    pipeline = PipelineModule(
        layers=[
            words(),
            LayerSpec(Places, config, shape.sequence),
            *layers,
            LayerSpec(Norm, shape.hidden),
            words(logits_of),
        ],
        topology=PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp),
        loss_fn=choose_loss(shape, dtype),
        partition_method="type:Layer",
        # A seed per layer: otherwise a stage's values depend on the number of layers before it
        # there.
        seed_layers=True,
        base_seed=SEED,
    )
    pipeline.seed_layers = False  # in training it would draw the same dropout in all replicas
    return pipeline


class Whole(nn.Module):
    """Hold the same model as one module, for ZeRO-2 and ZeRO-3, which no pipeline supports."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        config = _config(shape, 1, dtype)
        torch.manual_seed(SEED)  # as the pipeline does, for the same initial values
        self.words = Words(
            shape.padded, shape.hidden, init_method=config.init_method, config=config
        )
        torch.manual_seed(SEED + 1)
        self.places = Places(config, shape.sequence)
        self.layers = nn.ModuleList()
        for number in range(shape.layers):
            torch.manual_seed(SEED + 2 + number)
            self.layers.append(Layer(config, number + 1, shape.recompute))
        self.norm = Norm(shape.hidden)
        self.loss = choose_loss(shape, dtype)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        hidden = self.places(self.words(tokens))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.loss(logits_of(self.words, self.norm(hidden)), labels)


def groups_of(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Group parameters for the optimizer as Megatron does: biases and norms do not decay."""

    def chosen(decays: bool) -> Iterable[nn.Parameter]:
        return [p for p in model.parameters() if p.requires_grad and (p.dim() > 1) == decays]

    return [
        {"params": list(chosen(True)), "weight_decay": weight_decay},
        {"params": list(chosen(False)), "weight_decay": 0.0},
    ]


def _layer_spec() -> ModuleSpec:
    spec = get_gpt_layer_local_spec()
    attention = dataclasses.replace(
        spec.submodules.self_attention.submodules, core_attention=CausalAttention
    )
    spec.submodules.self_attention.submodules = attention
    return spec


def _config(shape: Shape, tp: int, dtype: torch.dtype) -> TransformerConfig:
    # pipeline_model_parallel_size stays 1: DeepSpeed cuts the pipeline, and Megatron would
    # otherwise number the layers of a stage a second time.
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        tensor_model_parallel_size=tp,
        use_cpu_initialization=True,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        hidden_dropout=shape.dropout,
        attention_dropout=shape.dropout,
        activation_func=nn.functional.gelu if shape.fusions else gelu,
        masked_softmax_fusion=False,
        bias_dropout_fusion=shape.fusions,
        bias_activation_fusion=shape.fusions,
        gradient_accumulation_fusion=False,
    )
