"""Hide spans of text behind sentinels, as T5 and mT5 are pretrained (span corruption).

Owns the published numbers: 15 % of the tokens are noise, in spans of 3 on average. Inputs keep the
rest, with a sentinel (`<extra_id_0>`, `<extra_id_1>`, ...) in place of each span; targets hold the
spans, each behind its sentinel; both end with `</s>`. Lengths are always the same, so nothing is
padded. Spans follow from a seed, an epoch and a sample's number alone. It must import nothing
but the standard library.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DENSITY = 0.15
SPAN = 3.0
END = "</s>"
# The name in a tokenizer.json, and in a spiece.model that holds them as words.
NAMES = ("<extra_id_{}>", "▁<extra_id_{}>")
Span = tuple[int, int]


@dataclass(frozen=True)
class Lengths:
    """Hold what one sample is cut into, all in tokens.

    Attributes:
        tokens: tokens of text that become one sample.
        noise: tokens of them that are hidden.
        spans: number of hidden spans, which is that of the sentinels.
        inputs: length of the encoder's input, its end included.
        targets: length of the decoder's target, its end included.
    """

    tokens: int
    noise: int
    spans: int

    @property
    def inputs(self) -> int:
        return self.tokens - self.noise + self.spans + 1

    @property
    def targets(self) -> int:
        return self.noise + self.spans + 1


def cut(tokens: int) -> Lengths:
    """Return how many of so many tokens are noise, and in how many spans."""
    noise = min(max(round(tokens * DENSITY), 1), tokens - 1)
    return Lengths(tokens, noise, max(round(noise / SPAN), 1))


def fit(inputs: int) -> Lengths:
    """Return the most text whose inputs are at most so long: 568 tokens for inputs of 512.

    Raises:
        SystemExit: not even two tokens of text fit.
    """
    if cut(2).inputs > inputs:
        raise SystemExit(f"inputs of {inputs} tokens hold no text: --set sequence=8 or more")
    tokens = 2
    while cut(tokens + 1).inputs <= inputs:
        tokens += 1
    return cut(tokens)


@dataclass(frozen=True)
class Marks:
    """Hold the numbers that a tokenizer gives to sentinels and to the end.

    Attributes:
        first: number of `<extra_id_0>`; each later sentinel is one less.
        count: how many there are.
        end: number of `</s>`.
    """

    first: int
    count: int
    end: int

    def number(self, sentinel: int) -> int:
        return self.first - sentinel

    def is_sentinel(self, number: int) -> bool:
        return self.first - self.count < number <= self.first


def find_marks(number: Callable[[str], int | None], name: str) -> Marks:
    """Return the sentinels of a tokenizer.

    Args:
        number: returns a token's number, None if there is no such token.
        name: the tokenizer's name, for messages.

    Raises:
        SystemExit: the tokenizer has none, or they do not go down from the first.
    """
    end = number(END)
    for form in NAMES:
        first = number(form.format(0))
        if first is None or end is None:
            continue
        found = itertools.takewhile(
            lambda which, form=form, first=first: number(form.format(which)) == first - which,
            itertools.count(),
        )
        count = sum(1 for _ in found)
        if number(form.format(count)) is None:
            return Marks(first, count, end)
        raise SystemExit(
            f"{name}: {form.format(count)} is not one below {form.format(count - 1)},"
            " as in T5's and mT5's tokenizers"
        )
    raise SystemExit(
        f"{name} has no {NAMES[0].format(0)} or no {END}: mT5 needs the tokenizer of a T5 or mT5;"
        " invoke data accelerate --tokenizer FOLDER, or --train-tokenizer N"
    )


def _pieces(total: int, count: int, chance: random.Random) -> list[int]:
    """Cut a length into so many parts of at least 1; every way is equally likely."""
    ends = sorted(chance.sample(range(1, total), count - 1))
    return [after - before for before, after in itertools.pairwise([0, *ends, total])]


def choose(lengths: Lengths, seed: str) -> list[Span]:
    """Choose the spans that are hidden; text comes before each, and the last one ends the sample.

    Args:
        seed: the same text chooses the same spans.
    """
    chance = random.Random(seed)
    hidden = _pieces(lengths.noise, lengths.spans, chance)
    kept = _pieces(lengths.tokens - lengths.noise, lengths.spans, chance)
    found, place = [], 0
    for before, size in zip(kept, hidden, strict=True):
        found.append((place + before, place + before + size))
        place += before + size
    return found


def corrupt(
    tokens: Sequence[int], spans: Sequence[Span], marks: Marks
) -> tuple[list[int], list[int]]:
    """Return the inputs and the targets of one sample."""
    inputs: list[int] = []
    targets: list[int] = []
    place = 0
    for which, (start, stop) in enumerate(spans):
        mark = marks.number(which)
        inputs += [*tokens[place:start], mark]
        targets += [mark, *tokens[start:stop]]
        place = stop
    return [*inputs, *tokens[place:], marks.end], [*targets, marks.end]


def restore(inputs: Sequence[int], targets: Sequence[int], marks: Marks) -> list[int]:
    """Put the spans of the targets in place of their sentinels; the last end of both is left out.

    A sentinel without a span in the targets stays, since a model may leave one out.
    """
    spans: dict[int, list[int]] = {}
    into: list[int] = []
    for number in _without_end(targets, marks):
        if marks.is_sentinel(number):
            into = spans.setdefault(number, [])
        else:
            into.append(number)
    found: list[int] = []
    for number in _without_end(inputs, marks):
        found += spans.get(number, [number]) if marks.is_sentinel(number) else [number]
    return found


def _without_end(numbers: Sequence[int], marks: Marks) -> Sequence[int]:
    return numbers[:-1] if numbers and numbers[-1] == marks.end else numbers
