"""The notes of 2021: no line has two rows, every row has its test or report, and they exist."""

from __future__ import annotations

import ast
import functools
import json
import re

import pytest

from stackyard.definitions.job_source import load_example
from stackyard.definitions.project import ROOT

PAGE = (ROOT / "docs/explanation/notes-2021.md").read_text(encoding="utf-8")
# DeepSpeed's files of the template that cut something.
STAGED = {f"--ds-config=/srv/templates/zero-{stage}.json" for stage in (1, 2, 3)}
SHOWN = re.compile(r"`((?:tests|docs/reports|images/(?:fixes|limits))/[^`]*)`")


def tables(page):
    """The rows of each note, as (first line, last line, cells)."""
    found = {}
    for part in page.split("\n## Note ")[1:]:
        number = int(part.partition(":")[0])
        rows = re.findall(r"^\| (\d+)(?:–(\d+))? \| (.+) \|$", part, flags=re.MULTILINE)
        found[number] = [
            (int(first), int(last or first), [cell.strip() for cell in rest.split(" | ")])
            for first, last, rest in rows
        ]
    return found


def disordered(rows):
    """Return the ranges of a note that are none, or begin before the one above them has ended."""
    said = []
    end = 0
    for first, last, _ in rows:
        if first > last:
            said.append(f"lines {first}–{last} are no range")
        if first <= end:
            said.append(f"line {first} has two rows, or comes too late")
        end = max(end, last)
    return said


@functools.cache
def functions(path):
    """The tests that a file defines."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def only_fast(shown):
    """Whether all that a row shows are tests that run nothing of what it says."""
    return all(one.startswith(("tests/unit/", "tests/golden/")) for one in shown)


def absent(shown):
    """Why what a row shows does not exist; empty where it does."""
    path, colons, name = shown.partition("::")
    if not (ROOT / path).is_file():
        return f"{shown}: there is no such file"
    if not path.startswith("tests/"):
        return ""
    name, _, case = name.rstrip("]").partition("[")
    if not colons or name not in functions(path):
        return f"{shown}: there is no such test"
    if case and f'"{case}"' not in (ROOT / path).read_text(encoding="utf-8"):
        return f"{shown}: there is no such case"
    return ""


ROWS = [(note, row) for note, rows in tables(PAGE).items() for row in rows]


def test_there_is_a_table_for_every_note():
    assert sorted(tables(PAGE)) == [1, 2, 3, 4, 5]
    assert all(tables(PAGE).values())


@pytest.mark.parametrize("note", sorted(tables(PAGE)))
def test_no_line_of_a_note_has_two_rows(note):
    wrong = disordered(tables(PAGE)[note])
    assert not wrong, "\n".join(wrong)


def test_every_row_says_what_is_done_and_what_shows_it():
    for note, (first, last, cells) in ROWS:
        assert len(cells) == 3 and all(cells), f"note {note}, {first}–{last}"
        shown = [one for one in SHOWN.findall(cells[2]) if not one.startswith("images/")]
        assert shown, f"note {note}, {first}–{last} shows no test and no report"
        assert not only_fast(shown), f"note {note}, {first}–{last} shows unit and golden tests only"


def test_every_test_and_report_that_a_row_shows_exists():
    shown = {one for _, (_, _, cells) in ROWS for one in SHOWN.findall(cells[2])}
    missing = sorted(filter(None, map(absent, shown)))
    assert not missing, "\n".join(missing)


def test_what_is_missing_is_seen():
    assert disordered([(1, 2, []), (5, 5, []), (6, 9, [])]) == []
    assert disordered([(1, 5, []), (5, 9, [])]) == ["line 5 has two rows, or comes too late"]
    assert disordered([(5, 9, []), (1, 2, [])]) == ["line 1 has two rows, or comes too late"]
    assert disordered([(1, 9, []), (2, 3, []), (5, 6, [])])[1].startswith("line 5 ")
    assert disordered([(7, 6, [])]) == ["lines 7–6 are no range"]
    assert only_fast(["tests/unit/test_notes.py::a", "tests/golden/test_mesh.py::b"])
    assert not only_fast(["tests/golden/test_mesh.py::a", "tests/smoke/test_mesh.py::b"])
    assert not only_fast(["docs/reports/cpu/fairseq/smoke.json"])
    assert absent("tests/unit/test_notes.py::test_what_is_missing_is_seen") == ""
    assert absent("tests/unit/test_notes.py::test_that_nobody_wrote").endswith("no such test")
    assert absent("tests/unit/test_notes.py").endswith("no such test")
    case = "tests/fleet/test_runs.py::test_every_launcher_trains_over_hosts[gpt-{}]"
    assert absent(case.format("tp")) == ""
    assert absent(case.format("t")).endswith("no such case")
    assert absent("docs/reports/none.json").endswith("no such file")


def test_the_page_tells_nothing_of_people_addresses_and_places():
    assert re.findall(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", PAGE) == []
    assert re.findall(r"(?<!\w)/(?:data|home|root|dataset)/[\w-]+", PAGE) == []
    assert not re.search(r"[\u4e00-\u9fff]", PAGE)


# What the templates took over from them


def test_templates_have_the_sizes_and_rates_of_the_notes():
    megatron = {"layers": "24", "hidden": "1024", "heads": "16", "sequence": "1024", "batch": "8",
                "updates": "500", "decay_updates": "320000", "lr": "1.5e-4", "min_lr": "1.0e-5",
                "warmup": "0.01", "save_every": "10000", "eval_every": "1000",
                "recompute": "yes", "precision": "bf16"}  # fmt: skip
    one = load_example(ROOT, "megatron", "gpt2-345m")
    assert one.values.items() >= megatron.items()
    fixed = {"--split=900,50,50", "--weight-decay=1e-2", "--clip=1.0", "--eval-iters=10"}
    assert fixed <= set(one.program)
    cut = load_example(ROOT, "megatron", "gpt2-345m-tp")
    assert cut.values.items() >= {**megatron, "tp": "4", "pp": "1", "batch": "9"}.items()
    assert "--ds-config=/srv/templates/zero-1.json" in cut.program
    names = [path.stem for path in (ROOT / "images/megatron/examples").glob("gpt2-*.yml")]
    templates = [load_example(ROOT, "megatron", name) for name in names]
    assert len(templates) == 6
    assert all(STAGED & {*one.program} for one in templates)  # none trains with stage 0
    assert [one.name for one in templates if one.launcher != "deepspeed"] == ["gpt2-345m"]
    for stage in (1, 2, 3):
        file = ROOT / f"images/megatron/templates/zero-{stage}.json"
        zero = json.loads(file.read_text(encoding="utf-8"))["zero_optimization"]
        # The notes': stage 0, 5e9 for gathering.
        own = {"stage": stage, "reduce_scatter": True, "contiguous_gradients": True,
               "reduce_bucket_size": 50_000_000}  # fmt: skip
        gather = {"allgather_bucket_size": 500_000_000} if stage < 3 else {}
        assert zero.items() >= (own | gather).items()
    fairseq = load_example(ROOT, "fairseq", "gpt2-fsdp")
    assert fairseq.values.items() >= {
        "sequence": "1024", "batch": "16", "update_freq": "2", "updates": "100000",
        "lr": "1.5e-4", "warmup": "3200", "save_every": "1000", "keep_saves": "100",
        "keep_epochs": "3", "log_every": "10",
    }.items()  # fmt: skip
    assert {
        "--ddp-backend=fully_sharded", "--no-reshard-after-forward", "--checkpoint-activations",
        "--adam-betas=(0.9,0.98)", "--weight-decay=1e-2", "--clip-norm=1.0",
        "--lr-scheduler=cosine", "--min-lr=1e-5", "--save-interval-updates={save_every}",
        "--keep-interval-updates={keep_saves}", "--keep-last-epochs={keep_epochs}",
        "--log-format=simple", "--log-interval={log_every}",
    } <= set(fairseq.program)  # fmt: skip
    assert "--arch=transformer_lm_gpt2_small" in fairseq.sizes["full"].args
    first = load_example(ROOT, "fairseq", "lm-fsdp")
    assert first.values.items() >= {"batch": "8", "updates": "10", "lr": "0.0001"}.items()
    assert {"--ddp-backend=fully_sharded", "--arch=transformer_lm"} <= set(first.program)
    assert set(fairseq.devices["cuda"].args) >= {"--fp16", "--fp16-init-scale=4"}
