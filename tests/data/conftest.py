"""Text, tokenizers and one idle container of each stack, for the tests of users' data."""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import shutil
from pathlib import Path

import pytest

from stackyard.data import conversion, dataset, encoding
from stackyard.definitions.project import ROOT
from stackyard.system import cleanup
from stackyard.system.engine import OWNER_LABEL, RUN_LABEL, ContainerSpec

HERE = Path(__file__).parent
CHUNK = 20_000
"""Bytes of a chunk here: the text has a dozen of them."""
CLOSE = 1e-5
"""The most that a converted model's logits may differ by, in fp32."""


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)


class Box:
    """A container of one stack that does nothing by itself; sees the test's folder as it is."""

    def __init__(self, engine, container):
        self._engine, self._container = engine, container

    def run(self, *argv, seconds=300, stdin=None, folder=None, env=None):
        return self._engine.exec(
            self._container, argv, seconds=seconds, stdin=stdin, folder=folder, env=env
        )

    def said(self, *argv, **how):
        done = self.run(*argv, **how)
        assert done.code == 0, done.output
        return done.output


@pytest.fixture(scope="session")
def box(engine, stack_images, place):
    with contextlib.ExitStack() as stack:
        found = {}

        def start(name):
            if name not in found:
                run = f"test-{secrets.token_hex(4)}"
                stack.enter_context(cleanup.undoing(cleanup.RUN, run))
                stack.callback(engine.remove_run, f"{RUN_LABEL}={run}")
                spec = ContainerSpec(
                    name=f"stackyard-{run}", image=stack_images[name].info.id, hostname="box",
                    # Ranks of one machine look their own host's name up.
                    network="none", hosts={"box": "127.0.0.1"},
                    env={"PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo"},
                    labels={RUN_LABEL: run, OWNER_LABEL: cleanup.owner()}, volumes={},
                    capabilities=("DAC_OVERRIDE",), shm_bytes=64 << 20,
                    tmpfs={"/small": "rw,size=64k", "/data": "rw"}, command=("sleep", "3600"),
                    binds={"/srv/data": str(ROOT / "images" / "data"),
                           "/srv/test": str(HERE / "inside")},
                    mounts={str(place): str(place)},
                )  # fmt: skip
                found[name] = Box(engine, engine.start(spec))
            return found[name]

        yield start


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """One folder, under the same name here and in every box."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def material(box, place):
    """Chinese and English text, a BPE and a unigram tokenizer trained on it, vocabularies."""
    folder = place / "material"
    folder.mkdir()
    box("fairseq").said("python3", "/srv/test/make_material.py", str(folder))
    return folder


@pytest.fixture(scope="session")
def make_in(engine, stack_images, material):
    """Make data as `invoke data` does, in a folder; gives the folder of the data."""

    def made(
        folder,
        stack,
        *,
        out="out",
        workers=2,
        vocab="",
        tokenizer="",
        new_tokenizer=0,
        train="text.txt",
        heard=None,
        **request,
    ):
        vocabulary = encoding.find_vocabulary(
            str(material / tokenizer) if tokenizer else "",
            str(material / vocab) if vocab else "",
            "",
            stack,
            new_tokenizer,
        )
        inputs = {"train": [str(material / train)]}
        places = {name: f"{dataset.INPUTS}/{n}" for n, name in enumerate(inputs["train"])}
        asked = dataset.Request(
            stack=stack, inputs=inputs, vocabulary=vocabulary, places=places, **request
        )
        target, image = folder / out, stack_images[stack].info.id
        quiet = [].append
        done = encoding.prepare(engine, image, asked, target, workers, quiet, quiet, CHUNK)
        if heard is not None:
            heard.append(f"{done['kept']} kept")
        return target

    return made


@pytest.fixture
def make(make_in, tmp_path):
    """Make data below the test's own folder."""
    return functools.partial(make_in, tmp_path)


@pytest.fixture(scope="session")
def convert(engine, stack_images):
    """Convert a checkpoint as `invoke convert` does; gives the folder of the model."""

    def converted(stack, checkpoint, **how):
        folder, name = conversion.find_checkpoint(str(checkpoint), stack)
        request = conversion.Request(
            stack=stack, folder=folder, name=name, typed=str(checkpoint), **how
        )
        out = checkpoint.parent / f"converted-{checkpoint.name}"
        conversion.convert(engine, stack_images[stack].info.id, request, out)
        return out

    return converted


@pytest.fixture(scope="session")
def difference(box):
    """The largest difference between a converted model's logits and those that are given.

    `tokens` is what `inside/tokens.py` reads, `parts` what `inside/differ.py` compares with.
    """

    def found(model, tokens, *parts):
        words = [str(model), tokens, *(str(part) for part in parts)]
        said = box("accelerate").said("python3", "/srv/test/differ.py", *words)
        return float(said.splitlines()[-1].removeprefix("differ by "))

    return found


@pytest.fixture(scope="session")
def fairseq_difference(box, convert, difference):
    """How far a checkpoint of fairseq is from its conversion, on data that it was trained on."""

    def found(checkpoint, data, shards=1):
        model, own = convert("fairseq", checkpoint), checkpoint.parent / "own.pt"
        tokens = f"{data}/train.bin,<u2,8,32"
        words = [str(checkpoint), str(shards), tokens, str(own)]
        box("fairseq").said("python3", "/srv/test/logits.py", *words)
        return difference(model, tokens, own)

    return found


@pytest.fixture(scope="session")
def megatron(box):
    """Train Megatron's template, which then computes logits of its data, for `difference`."""

    def train(folder, data, ranks, words, env):
        start = ["torchrun", f"--nproc_per_node={ranks}", "/srv/test/megatron_logits.py"]
        tokens = f"{data}/train.bin,<u2,4,32"
        box("megatron").said(*start, tokens, f"{folder}/own", *words, env=env, folder=str(folder))
        return tokens, *sorted(folder.glob("own.*"))

    return train


@pytest.fixture
def refused(box, material, place):
    """Run the program itself on settings that it must refuse; gives what it says."""

    def run(stack, *, work="", **changed):
        folder = place / secrets.token_hex(4)
        folder.mkdir()
        given = {
            "stack": stack,
            "inputs": {"train": [{"path": str(material / "text.txt"), "name": "text.txt"}]},
            "split": [],
            "reading": {"encoding": "utf-8", "bad": "fail", "key": "", "keep_blank": False},
            "tokens": {"kind": "words", "path": str(material / "vocab.json"), "name": "vocab.json"},
            "append_eod": True, "eod": "", "unk": "<unk>", "seq_length": 0, "folders": 0,
            "workers": 1, "chunk": CHUNK, "told": {}, "work": work or str(folder),
        }  # fmt: skip
        text = json.dumps({**given, **changed}).encode() + b"\n"
        done = box(stack).run("python3", "/srv/data/prepare.py", stdin=text)
        last = json.loads(done.output.splitlines()[-1])
        assert last["event"] == "error", last
        assert not (folder / "ready" / "data.json").exists()
        shutil.rmtree(folder)
        return done.code, last

    return run
