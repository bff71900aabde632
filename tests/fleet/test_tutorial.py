"""The tutorial of two hosts, typed as it stands, on two emulated hosts."""

from __future__ import annotations

import re
import shlex

from tests import tutorials

PAGE = "two-hosts.md"


def test_the_tutorial_of_two_hosts_is_what_happens(yard, tmp_path):
    two = yard.only("study", "train")
    text = (tutorials.FOLDER / PAGE).read_text(encoding="utf-8")
    (program,) = (body for _, language, body in tutorials.blocks(text) if language == "python")
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(program)
    said = {}
    for one in tutorials.of_engine(PAGE):
        words = shlex.split(one.words.replace("--hosts hosts.yml", ""))[1:]
        done = two.invoke(*(str(code) if word == "code" else word for word in words))
        said[words[0]] = done.stdout + done.stderr
        assert tutorials.missing(one.shown, said[words[0]]) == [], one.words
    assert list(said) == ["doctor", "up", "sync", "run", "status", "logs", "down"]
    for rank, host in enumerate(("study", "train")):
        lines = re.findall(rf"^{host} {rank} +\| update (\d+) loss ([\d.]+) on rank {rank} of 2$",
                           said["run"], flags=re.MULTILINE)  # fmt: skip
        assert [int(update) for update, _ in lines] == [10, 20, 30, 40, 50]
        assert float(lines[-1][1]) < 0.5 * float(lines[0][1])
        assert all(f"update {update} loss {loss}" in said["logs"] for update, loss in lines)
