"""DeepSpeed configurations that a job names, held against its ranks before it starts."""

from __future__ import annotations

import json

import pytest

from stackyard.launch.accelerate_config import parse
from stackyard.launch.deepspeed_config import conflict, examine, named
from stackyard.launch.job import Job
from stackyard.system.errors import UsageError

FILES = {
    "/code/ds.json": {"train_batch_size": 3},
    "/data/fits.json": {"train_batch_size": 4},
    "/data/auto.json": {"train_batch_size": "auto"},
    "/data/tp.json": {"train_batch_size": 3, "tensor_parallel": {"autotp_size": 2}},
}


def job(*words, config=None):
    values = {
        "name": "demo-1", "stack": "accelerate", "base": "cpu", "image": "sha256:0", "nodes": 2,
        "per_node": 1, "device": "cpu", "folder": "/code",
    }  # fmt: skip
    own = parse(json.dumps(config), "my.yaml") if config else None
    return Job(**values, program=("/code/train.py", *words), config=own)


def read(path):
    if path == "/code/broken.json":
        return b"{"
    if path == "/code/list.json":
        return b"[]"
    return json.dumps(FILES[path]).encode() if path in FILES else None


def texts(*words):
    return [one.text for one in named(job(*words))]


def test_programs_name_their_configurations():
    assert texts("--deepspeed", "ds.json", "--lr", "1") == ["ds.json"]
    assert texts("--deepspeed=/data/fits.json") == ["/data/fits.json"]
    assert texts("--deepspeed", "--deepspeed_config", "ds.json") == ["ds.json"]
    assert texts('--deepspeed={"a": 1}') == ['{"a": 1}']
    assert texts("--deepspeed", "train", "--data", "x.json") == []
    assert texts("--deepspeed") == []


def test_an_accelerate_configuration_names_one():
    config = {"distributed_type": "DEEPSPEED",
              "deepspeed_config": {"deepspeed_config_file": "ds.json"}}  # fmt: skip
    (found,) = named(job(config=config))
    assert (found.text, found.by, found.data_parallel) == ("ds.json", "my.yaml", True)


@pytest.mark.parametrize("words", [("--deepspeed", "/data/fits.json"), ("--deepspeed={}",),
                                   ("--deepspeed_config", "/data/auto.json"), ("--lr", "1"),
                                   ("--deepspeed", "/data/tp.json")])  # fmt: skip
def test_what_fits_is_started(words):
    assert [one for one in examine(job(*words), 2, read) if "model parallel" not in one] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--deepspeed", "ds.json"), "train_batch_size 3 cannot be divided by 2 ranks"),
        (("--deepspeed_config", "gone.json"), "which the first node cannot read"),
        (("--deepspeed_config", "gone.json"), "it would be /code/gone.json there"),
        (("--deepspeed", "broken.json"), "broken.json (--deepspeed) is not JSON"),
        (("--deepspeed", "list.json"), "holds no keys"),
        (('--deepspeed={"train_batch_size": 5}',), "its configuration (--deepspeed)"),
    ],
)
def test_what_does_not_fit_is_refused(words, said):
    with pytest.raises(UsageError) as caught:
        examine(job(*words), 2, read)
    assert said in str(caught.value)


def test_a_program_that_may_be_model_parallel_is_warned_of():
    """Two ranks of tensor parallelism share their data, and any batch size is right."""
    (said,) = examine(job("--deepspeed_config", "ds.json"), 2, read)
    assert said.startswith("ds.json (--deepspeed_config): train_batch_size 3 cannot be divided")


@pytest.mark.parametrize(
    ("total", "micro", "steps", "said"),
    [
        (8, 2, 2, ""),
        (8, 2, None, ""),
        (8, None, 4, ""),
        (8, "auto", "auto", ""),
        (8, 2, 1, "train_batch_size is 8, but train_micro_batch_size_per_gpu 2 x"
         " gradient_accumulation_steps 1 x 2 ranks make 4"),
        (8, 3, None, "train_batch_size 8 cannot be divided by train_micro_batch_size_per_gpu 3"
         " x 2 ranks"),
        (7, None, None, "train_batch_size 7 cannot be divided by 2 ranks"),
        ("auto", 3, 1, ""),
        (None, 3, 1, ""),
        (True, 3, 1, ""),
    ],
)  # fmt: skip
def test_batch_sizes_are_held_against_the_ranks(total, micro, steps, said):
    values = {"train_batch_size": total, "train_micro_batch_size_per_gpu": micro,
              "gradient_accumulation_steps": steps}  # fmt: skip
    assert conflict({name: value for name, value in values.items() if value is not None}, 2) == said
