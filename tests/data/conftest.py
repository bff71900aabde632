"""Text, tokenizers and one idle container of each stack, for the tests of users' data."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from pathlib import Path

import pytest

from stackyard.data import dataset, encoding
from stackyard.definitions.project import ROOT
from stackyard.system import cleanup
from stackyard.system.engine import OWNER_LABEL, RUN_LABEL, ContainerSpec

HERE = Path(__file__).parent
CHUNK = 20_000
"""Bytes of a chunk here: the text has a dozen of them."""


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


@pytest.fixture
def make(engine, stack_images, material, tmp_path):
    """Make data as `invoke data` does; gives the folder."""

    def made(
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
        target, image = tmp_path / out, stack_images[stack].info.id
        quiet = [].append
        done = encoding.prepare(engine, image, asked, target, workers, quiet, quiet, CHUNK)
        if heard is not None:
            heard.append(f"{done['kept']} kept")
        return target

    return made


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
