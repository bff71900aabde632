"""Spans that mT5 learns to fill: the published numbers, and a text that is put together again."""

import importlib.util
import itertools
import random
import sys
from collections import Counter

import pytest

from stackyard.definitions.project import ROOT


def _load():
    path = ROOT / "images" / "accelerate" / "templates" / "spans.py"
    spec = importlib.util.spec_from_file_location("template_spans", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["template_spans"] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


spans = _load()
MT5 = spans.Marks(first=250_099, count=100, end=1)
NUMBERS = {"</s>": 1, **{f"<extra_id_{n}>": 250_099 - n for n in range(100)}}


# T5's code gives these for its random_spans_helper (0.15, 3.0, one sentinel a span, one end).
@pytest.mark.parametrize(
    ("inputs", "tokens", "targets"), [(512, 568, 114), (1024, 1137, 229), (256, 284, 58)]
)
def test_lengths_are_those_of_t5s_code(inputs, tokens, targets):
    found = spans.fit(inputs)
    assert (found.tokens, found.inputs, found.targets) == (tokens, inputs, targets)


@pytest.mark.parametrize("inputs", [*range(3, 70), 511, 513, 2000])
def test_inputs_have_just_the_length_that_was_asked_for(inputs):
    found = spans.fit(inputs)
    assert found.inputs == inputs
    assert spans.cut(found.tokens + 1).inputs > inputs


def samples(count, inputs=512):
    lengths = spans.fit(inputs)
    for number in range(count):
        yield lengths, spans.choose(lengths, f"1 0 {number}")


def test_noise_is_15_percent_in_spans_of_3_and_every_place_is_hidden_as_often():
    hidden, sizes, count = Counter(), Counter(), 2000
    for lengths, chosen in samples(count):
        assert len(chosen) == 28
        places = [place for start, stop in chosen for place in range(start, stop)]
        assert len(set(places)) == len(places) == 85  # 15 % of 568, rounded
        # Text begins every sample and stands between spans; a span ends it.
        assert all(stop < start for (_, stop), (start, _) in itertools.pairwise(chosen))
        assert chosen[0][0] > 0 and chosen[-1][1] == lengths.tokens
        hidden.update(places)
        sizes.update(stop - start for start, stop in chosen)
    assert sum(size * n for size, n in sizes.items()) / sizes.total() == pytest.approx(85 / 28)
    # Lengths of spans are those of a random composition of 85 in 28 parts: P(1) = 27 / 84.
    assert sizes[1] / sizes.total() == pytest.approx(27 / 84, rel=0.02)
    inner = [hidden[place] / count for place in range(100, 468)]
    # A little below 85 / 568, since a sample's last token is always hidden and its first never.
    assert 0.144 < sum(inner) / len(inner) < 85 / 568
    assert min(inner) > 0.1 and max(inner) < 0.2


def test_inputs_and_targets_rebuild_the_text():
    for lengths, chosen in samples(200, inputs=1024):
        tokens = random.Random(str(chosen)).choices(range(3, 250_000), k=lengths.tokens)
        inputs, targets = spans.corrupt(tokens, chosen, MT5)
        assert (len(inputs), len(targets)) == (1024, 229)
        assert inputs[-1] == targets[-1] == 1
        marks = [number for number in inputs if MT5.is_sentinel(number)]
        assert marks == list(range(250_099, 250_099 - lengths.spans, -1))
        assert [number for number in targets if MT5.is_sentinel(number)] == marks
        assert targets[0] == 250_099
        assert spans.restore(inputs, targets, MT5) == tokens


def test_a_blank_that_a_model_leaves_out_stays():
    inputs = [10, 250_099, 11, 250_098, 1]
    assert spans.restore(inputs, [250_099, 7, 8], MT5) == [10, 7, 8, 11, 250_098]
    assert spans.restore(inputs, [5, 250_098], MT5) == [10, 250_099, 11]


def test_the_same_sample_and_epoch_hide_the_same_and_others_hide_others():
    lengths = spans.fit(512)
    first = spans.choose(lengths, "1234 0 7")
    assert spans.choose(lengths, "1234 0 7") == first
    assert len({str(spans.choose(lengths, f"1234 {e} {n}")) for e in "01" for n in "78"}) == 4


def test_sentinels_go_down_from_the_top_of_the_vocabulary():
    assert spans.find_marks(NUMBERS.get, "t") == MT5
    # As mT5's own spiece.model has them: words, which begin as all do.
    words = {name.replace("<extra", "▁<extra"): number for name, number in NUMBERS.items()}
    assert spans.find_marks(words.get, "t") == MT5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"<extra_id_0>": None}, "has no <extra_id_0> or no </s>"),
        ({"</s>": None}, "has no <extra_id_0> or no </s>"),
        ({"<extra_id_40>": 250_100}, "<extra_id_40> is not one below <extra_id_39>"),
    ],
)
def test_a_tokenizer_that_cannot_serve_is_named(changed, said):
    with pytest.raises(SystemExit, match=said):
        spans.find_marks({**NUMBERS, **changed}.get, "t")


def test_inputs_that_hold_no_text_are_refused():
    with pytest.raises(SystemExit, match="hold no text"):
        spans.fit(2)
