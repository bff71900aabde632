"""Count the FLOPs of a token, and compute the share of a GPU's peak that a speed reaches.

Owns the formula. Model FLOPs are those that the training needs, not those that a program computes:
work that is done twice (recomputed activations) or for nothing (masked halves of attention) does
not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from stackyard.validate.bench.definition import Model, Peak


def multiplied(model: Model) -> int:
    """Count the parameters that multiply a token: attention, feed-forward, output projection.

    The input embedding is a look-up and is left out, also where it shares its values with the
    output; so are biases and norms (less than 0.1 % of the rest).
    """
    layer = 4 * model.width**2 + 2 * model.width * model.inner
    return model.layers * layer + model.vocabulary * model.width


def flops_per_token(model: Model) -> float:
    """Return the model FLOPs of one token, forward and backward: 6 N + 6 L d T.

    N (`multiplied`) parameters cost a multiplication and an addition forward and twice that
    backward. Attention multiplies each of L layers' queries with T keys and the result with T
    values, d wide: 4 T d forward, 12 T d with the backward; causal, half of that is masked (PaLM,
    arXiv:2204.02311, appendix B, counts all 12).
    """
    return 6.0 * multiplied(model) + 6.0 * model.layers * model.width * model.context


def mfu(model: Model, tokens_s: float, ranks: int, peak: Peak | None) -> float | None:
    """Return model FLOPs of all ranks per second over their GPUs' peak; None if that is unknown."""
    if peak is None:
        return None
    return tokens_s * flops_per_token(model) / (ranks * peak.flops)


def find_peak(names: Sequence[str], peaks: Sequence[Peak]) -> tuple[Peak | None, str]:
    """Return the peak of a run's GPUs; None, with the reason, if they share no known one.

    Args:
        names: the driver's name of each GPU; empty on CPU ranks.
    """
    if not names:
        return None, "the ranks compute on CPUs: there is no MFU"
    if len(set(names)) > 1:
        return None, f"the GPUs differ ({', '.join(sorted(set(names)))}): no peak stands for all"
    for peak in peaks:
        if all(word in names[0].split() for word in peak.names):
            return peak, ""
    return None, f"no peak is known for {names[0]}; images/bench/peaks.yml lists those that are"
