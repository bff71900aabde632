"""Pages are true and plain: links, anchors, figures, commands, outputs, and sentences."""

from __future__ import annotations

import ast
import html
import json
import os
import re
import runpy
import shlex
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from stackyard import __version__
from stackyard.cli.program import collection
from stackyard.definitions.document import parse_document
from stackyard.definitions.project import ROOT
from stackyard.definitions.read.files import read_stack
from stackyard.mesh import hosts
from stackyard.report import figures, page
from stackyard.system.toml import parse_toml
from stackyard.validate.template.judge import judge
from tests import tutorials
from tests.unit import templates
from tests.unit.lines import type_line
from tests.unit.test_architecture import ROOMS
from tests.unit.test_language import has_a_word_of_the_list

GROUPS = ("tutorials", "howto", "reference", "explanation")
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks" / "README.md"])
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = collection().tasks


def prose(text):
    """A page without its code blocks, comments and made tables."""
    text = re.sub(r"^<!-- [\w ]+: scripts/gpu-figures -->.*?^<!-- end of [\w ]+ -->$", "", text,
                  flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->|^ {4}[^\n]*$", "", text, flags=re.MULTILINE | re.DOTALL)


# Links


def slugs(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = []
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL),
                              flags=re.MULTILINE):  # fmt: skip
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        before = sum(1 for one in found if one == slug or re.fullmatch(rf"{slug}-\d+", one))
        found.append(f"{slug}-{before}" if before else slug)
    return set(found)


def broken(path, text):
    """The links of a page that lead nowhere."""
    said = []
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)",
                                     re.sub(r"```.*?```", "", text, flags=re.DOTALL)):  # fmt: skip
        if re.match(r"[a-z]+:", target):
            continue
        to = Path(os.path.normpath(path.parent / target)) if target else path
        if not to.is_file():
            said.append(target)
        elif anchor and anchor not in slugs(text if to == path else to.read_text("utf-8")):
            said.append(f"{target}#{anchor}")
    return said


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings(name):
    path = ROOT / name
    assert broken(path, path.read_text(encoding="utf-8")) == []


# What git writes into a file where two changes meet; one page was committed with it.
MARKS = re.compile(r"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_no_page_has_the_marks_of_a_merge(name):
    assert MARKS.findall((ROOT / name).read_text(encoding="utf-8")) == []


def test_the_marks_of_a_merge_are_seen():
    text = "<" * 7 + " HEAD\na\n" + "=" * 7 + "\nb\n" + ">" * 7 + " main\n"
    assert len(MARKS.findall(text)) == 3
    assert MARKS.findall(f"| a |\n{'=' * 8}\n") == []


def test_a_link_that_leads_nowhere_is_seen():
    page = DOCS / "index.md"
    text = "# A\n## The `b`: c\n## A\n[x](none.md) [y](design.md#none) [z](#the-b-c) [a](#a-1)"
    assert broken(page, text) == ["none.md", "design.md#none"]
    assert broken(page, "[x](../README.md) [y](https://none.example) [z](design.md#words)") == []


def test_the_index_leads_to_every_page_of_the_four_groups():
    linked = set(re.findall(r"\]\(([^)#]+)", (DOCS / "index.md").read_text(encoding="utf-8")))
    there = {f"{group}/{path.name}" for group in GROUPS for path in (DOCS / group).glob("*.md")}
    assert there - linked == set()
    assert {path.parent.name for path in DOCS.glob("*/*.md")} == {*GROUPS, "reports", "schemas"}


# Sentences


def long_sentences(text, most=25):
    """Sentences of more words than a reader takes in at once; a table cell is read alone."""
    parts = re.split(r"\n\s*\n|^\s*[-*] |^\s*\d+\. |\|", prose(text), flags=re.MULTILINE)
    found = []
    for part in parts:
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(part.split())):
            words = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", sentence)).split()
            if len(words) > most:
                found.append(sentence)
    return found


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", DOCS / "index.md", *tutorials.PAGES], ids=lambda path: path.name
)
def test_no_sentence_of_the_way_in_is_long(path):
    assert long_sentences(path.read_text(encoding="utf-8")) == []


GUIDES = [*sorted((DOCS / "howto").glob("*.md")), *sorted((DOCS / "explanation").glob("s*.md")),
          *(DOCS / "reference" / name for name in ("checks.md", "report.md"))]  # fmt: skip
LONG = {"slurm.md", "templates.md"}  # still have longer ones


@pytest.mark.parametrize(
    "path", [path for path in GUIDES if path.name not in LONG], ids=lambda path: path.name
)
def test_no_sentence_of_a_guide_is_very_long(path):
    assert long_sentences(path.read_text(encoding="utf-8"), most=30) == []


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", DOCS / "index.md", *tutorials.PAGES], ids=lambda path: path.name
)
def test_the_way_in_is_in_plain_words(path):
    text = prose(path.read_text(encoding="utf-8"))
    assert [said for line in text.splitlines() if (said := has_a_word_of_the_list(line))] == []


def test_a_long_sentence_is_seen():
    words = "word " * 25
    assert long_sentences(f"{words}more.") == [f"{words}more."]
    assert long_sentences(f"{words.strip()}. {words}\n\n- {words}\n\n```\n{words * 2}\n```\n") == []
    assert long_sentences(f"| {words}| {words}|\n    {words * 2}\n`{words * 2}` is code.") == []
    assert long_sentences(f"    typed\n\n{words}more.") == [f"{words}more."]


# Figures


def test_the_newest_changes_are_those_of_this_version():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    named = [word.split()[0] for word in re.findall(r"^## (.+)$", changes, re.MULTILINE)]
    assert next(name for name in named if name != "Unreleased") == __version__
    project = parse_toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == __version__


def test_readme_is_short():
    assert len(README.splitlines()) <= 130


FIGURES = runpy.run_path(str(ROOT / "scripts" / "gpu-figures"))


@pytest.mark.parametrize("page", FIGURES["PAGES"])
def test_figures_are_those_of_the_reports(page):
    old, new = FIGURES["renewed"](page)
    assert old == new, "type: make figures"


def test_a_changed_figure_is_seen():
    lines = ["<!-- checks: scripts/gpu-figures -->", "| 1 |", "<!-- end of checks -->"]
    page = "\n".join(["a", *lines, "b"])
    replaced = FIGURES["replaced"]
    assert replaced("README.md", page, "checks", ["| 1 |"]) == page
    assert "| 2 |" in replaced("docs/x.md", page, "checks", ["| 2 |"])
    linked = replaced("docs/x/y.md", page, "checks", ["({up}a) ({up}docs/b)"])
    assert "(../../a) (../b)" in linked
    with pytest.raises(SystemExit, match="has no place"):
        replaced("README.md", "none", "checks", [])


MEASURED = re.compile(r"\b\d[\d.,]*\s?(?:s|ms|min|minutes|seconds|[kMGT]i?B|GB/s|%|x|times)(?!\w)")
NEEDED = {"12 GiB"}  # disk that the main job needs


def test_readme_has_no_figure_but_those_of_reports():
    assert set(MEASURED.findall(prose(README))) - NEEDED == set()
    assert MEASURED.findall("in 90 s, 5.3 GB, 41 % and 1.5x, on 2 cores") == [
        "90 s", "5.3 GB", "41 %", "1.5x",
    ]  # fmt: skip


def test_ratios_count_pauses_that_a_median_hides():
    runs = [{"side": "a", "ranks": 1, "windows": [[10, 1.0], [20, 100.0], [30, 100.0], [40, 25.0]]},
            {"side": "b", "ranks": 1, "windows": [[10, 9.0], [20, 50.0]]}]  # fmt: skip
    value = {"runs": runs, "sides": {"a": {"against": "b"}}}
    assert FIGURES["windows_ratio"](value, {"side": "a", "ranks": 1}) == pytest.approx(1.0)


def test_a_template_is_a_row_with_its_figures_and_what_was_not_run():
    value = dict(templates.report(templates.good()))
    value["gpus"] = {"devices": [{"name": "NVIDIA H200"}]}
    row = FIGURES["template_row"](ROOT / "docs/reports/2x-h200/megatron/template-x.json", value)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "[gpt2-345m]({up}docs/reports/2x-h200/megatron/template-x.json)", "2 x NVIDIA H200",
        "passed", "10.00 to 6.10", f"{2 * templates.PLAN.tokens:,}", "2.00", "0.0 GiB", "not run",
        "1.00",
    ]  # fmt: skip
    value["costs"] = [{"label": "without-x", "what": "with y in place of x", "of_plain": 1.5}]
    assert FIGURES["of_plain"](value) == "1.00; 1.50 with y in place of x"
    assert FIGURES["of_plain"]({**value, "plain": None}) == "not run"


# Names


def test_the_page_of_checks_names_all_of_them():
    page = (DOCS / "reference" / "checks.md").read_text(encoding="utf-8")
    smoke, bench, template = (
        re.findall(r"^\| `(\w+)` \|", part, re.M)
        for part in re.split("## (?:Bench|Template|Certify.*)\n", page)[:3]
    )
    assert template == [check.name for check in judge(templates.PLAN, templates.good())] + ["freed"]
    assert smoke == list(figures.SMOKE)
    reports = [json.loads(path.read_text()) for path in (DOCS / "reports").rglob("bench*.json")]
    assert set(bench) == {check["name"] for report in reports for check in report["checks"]}


def gone(text):
    """The names of a page below a room, `room/module` or `room/module.name`, that are not there."""
    rooms = "|".join([*ROOMS, "inside"])
    for place in re.findall(rf"`((?:stackyard/)?(?:{rooms})/[\w/.]*)`", text):
        path = ROOT / "stackyard" / place.removeprefix("stackyard/")
        module = path.with_suffix(".py")
        known = path.suffix and module.exists() and re.search(
            rf"^(?:def |class )?{path.suffix[1:]}\b", module.read_text("utf-8"), re.MULTILINE
        )  # fmt: skip
        if not (path.exists() or path.with_name(f"{path.name}.py").exists() or known):
            yield place


def test_the_design_names_modules_that_are_there_and_all_of_inside():
    text = (DOCS / "design.md").read_text(encoding="utf-8")
    assert list(gone(text)) == []
    inside = {path.stem for path in (ROOT / "stackyard" / "inside").iterdir()} - {"__pycache__"}
    assert {name for name in inside if not re.search(rf"`(inside/)?{name}\b", text)} == set()


def test_a_module_that_is_gone_is_seen():
    text = "`mesh/nodes`, `mesh/nodes.py`, `mesh/nodes.sweep`, `cli/steps/`, `mesh/nodes.gone`"
    assert list(gone(text)) == ["mesh/nodes.gone"]


def test_the_picture_of_the_architecture_names_every_room():
    text = (DOCS / "architecture.svg").read_text(encoding="utf-8")
    named = re.findall(r'class="r"[^>]*>([^<]+)<', text)
    assert {room for part in named for room in part.split(", ")} == set(ROOMS)
    assert "prefers-color-scheme:dark" in text and "<title" in text


def unknown(line):
    """The commands and options of a line behind `invoke` that do not exist."""
    said = []
    plain = re.sub(r"[\[\]()…]|\.\.\.", " ", line)
    for part in re.split(r";|\||&&", re.sub(r"\s(?:#|--)\s.*", "", plain)):
        words = part.split()
        words = words[words.index("invoke") + 1 :] if "invoke" in words else []
        task = None
        for word in words:
            name = word.rstrip(",.:").partition("=")[0]
            if name in COMMANDS:
                task = COMMANDS[name]
            elif name.startswith("--") and task is not None:
                known = {f"--{one.names[0]}" for one in task.get_arguments()}
                known |= {f"--no-{one[2:]}" for one in known} | {"--help"}
                said += [] if name in known else [f"{task.name} {name}"]
        if words and words[0].islower() and words[0].isalpha() and words[0] not in COMMANDS:
            said.append(words[0])
    return said


def typed(text):
    """What a page tells to type: lines of code blocks, and code within sentences."""
    lines = re.findall(r"^(?: {4}|\$ )(invoke .*)$", text, flags=re.MULTILINE)
    lines = [re.split(r" {2,}", line)[0] for line in lines]
    return lines + re.findall(r"`(invoke [^`\n]*)`", text)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "CHANGELOG.md"])
def test_every_command_and_option_that_a_page_names_exists(name):
    text = (ROOT / name).read_text(encoding="utf-8").partition("\n## Not yet")[0]
    assert [line for line in typed(text) if unknown(line)] == []


RECORD = runpy.run_path(str(ROOT / "scripts" / "record-session"))


def test_the_loss_curve_names_every_layout():
    path = DOCS / "reports/cpu/fairseq/smoke.json"
    report = json.loads(path.read_text(encoding="utf-8"))
    made = RECORD["with_legend"](page.losses(report))
    for text in (made, (DOCS / "recordings/loss.svg").read_text(encoding="utf-8")):
        assert re.findall(r">([^<>]+)</text>\n(?:<line|<style)", text)[-3:] == list(
            report["curves"]
        )


def test_every_recorded_command_exists():
    recordings = RECORD["RECORDINGS"]
    there = {path.stem for path in (DOCS / "recordings").iterdir()}
    assert there == {*recordings, "loss", "page"}
    for name, command in recordings.items():
        text = (DOCS / "recordings" / f"{name}.svg").read_text(encoding="utf-8")
        said = html.unescape(re.sub(r"<[^>]+>", "", text)).replace("\xa0", " ")
        assert f"$ {command}" in said and unknown(command) == []


def test_a_command_that_does_not_exist_is_seen():
    assert unknown("invoke smoke fairseq --gpus 0") == []
    assert unknown("invoke build [STACK] [--again]") == ["build --again"]
    assert unknown("invoke bulid fairseq") == ["bulid"]
    assert unknown("invoke build x smoke x --fresh -- --own") == ["smoke --fresh"]
    assert typed("`invoke a`\n\n    invoke b --c    what it does\n$ invoke d") == [
        "invoke b --c", "invoke d", "invoke a",
    ]  # fmt: skip


# Tutorials

RUN = [one for path in tutorials.PAGES for one in tutorials.commands(path)]


def test_every_command_block_of_a_tutorial_says_who_runs_it():
    assert {one.page for one in RUN} == {path.name for path in tutorials.PAGES}
    wrong = [one for one in RUN if not re.fullmatch(r"run(: \d)?|engine|shown: .+", one.mark)]
    assert wrong == []


@pytest.mark.parametrize(
    "one", [one for one in RUN if one.mark.startswith("run")], ids=lambda one: one.words
)
def test_a_command_without_an_engine_says_what_the_tutorial_shows(one, monkeypatch, capsys):
    program, *words = shlex.split(one.words)
    assert program == "invoke"
    monkeypatch.setenv("COLUMNS", "100")
    code = type_line(monkeypatch, words)
    out, said = capsys.readouterr()
    shown = (out + said).rstrip() + "\n"
    assert (code, "\n".join(line.rstrip() for line in shown.splitlines())) == (
        int(one.mark.partition(": ")[2] or 0), one.shown.rstrip(),
    )  # fmt: skip


def test_the_first_tutorial_types_the_main_job():
    assert [one.words for one in tutorials.of_engine("first-smoke.md")] == ["make smoke"]
    assert "invoke engine smoke --gpus 0" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_shown_line_that_was_not_said_is_named():
    said = "[    0.4 s] x: 2 nodes are up in 1.2 s\nid sha256:0123456789abcdef, 3 MB\n"
    shown = "...\n[   12.0 s] x: 3 nodes are up in 9 s\nid sha256:fedcba9876543210, 4 MB\n"
    assert tutorials.missing(shown, said) == []
    assert tutorials.missing("x: 2 nodes are down\n", said) == ["x: 2 nodes are down"]


def test_blocks_of_yaml_and_python_are_read_by_their_readers():
    for path in tutorials.PAGES:
        for _, language, body in tutorials.blocks(path.read_text(encoding="utf-8")):
            if language == "python":
                ast.parse(body)
            elif language == "yaml" and "hosts:" in body:
                problems = []
                fleet = hosts.read_yaml(body, "hosts.yml", problems)
                assert [host.name for host in fleet.hosts] == ["study", "train"] and not problems
            elif language == "yaml":
                stack_of(body)


def stack_of(text):
    problems = []
    found = read_stack(parse_document(text, file="stack.yml", problems=problems), "ddp")
    assert problems == []
    return found


def test_the_stack_in_readme_is_the_examples():
    (body,) = (body for _, language, body in tutorials.blocks(README) if language == "yaml")
    assert len(body.splitlines()) <= 12
    shown = yaml.safe_load(body)
    whole = yaml.safe_load((ROOT / "examples/ddp/stack.yml").read_text(encoding="utf-8"))
    assert stack_of(body).packages == {"einops": "0.8.2"}
    assert {**whole, "smoke": {key: whole["smoke"][key] for key in shown["smoke"]}} == shown


def test_every_committed_report_has_a_page_and_a_line_in_the_index(tmp_path):
    runpy.run_path(str(ROOT / "scripts" / "report-pages"))["main"](tmp_path)
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    linked = re.findall(r'<a href="([^"]+)">', index)
    kinds = ("*smoke*", "bench*", "template*", "certify/*")
    there = [path for kind in kinds for path in (DOCS / "reports").rglob(f"{kind}.json")]
    names = [path.relative_to(DOCS / "reports").with_suffix(".html") for path in there]
    assert sorted(linked) == sorted(map(str, names))
    assert all("<h1" in (tmp_path / name).read_text(encoding="utf-8") for name in linked)
    assert index.count("<td>passed<td>") < len(linked) == index.count("<tr><td>")


# Sphinx, which `make docs` runs in an environment of its own

CONF = runpy.run_path(str(DOCS / "conf.py"))


def unreasoned(project, page):
    """Packages without a reason on the page, and those that the page alone has."""
    tables = parse_toml(project)["project"]
    wanted = [*tables["dependencies"], *tables["optional-dependencies"]["dev"]]
    section = re.search(r"^## Dependencies.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| ([^|]+) \| [^|]*[a-z]{3}[^|]* \|$", section[0], re.MULTILINE)[1:]
    plain = [re.sub(r" \(.*?\)", "", cell) for cell in cells]
    named = {word for cell in plain for word in re.split(r", with its |, | and ", cell)}
    return named ^ {Requirement(one).name for one in wanted}


def test_every_dependency_has_its_reason():
    project, page = ((ROOT / path).read_text() for path in ("pyproject.toml", "docs/design.md"))
    # pip: build stages have it from their base.
    assert unreasoned(project, page) == {"pip"}


def test_a_dependency_without_a_reason_is_seen():
    project = '[project]\ndependencies = ["a>=1", "b[c]; python_version < \'3.11\'"]\n'
    project += '[project.optional-dependencies]\ndev = ["d"]\n'
    page = "## Dependencies, and why\n\n| package | why |\n|---|---|\n{}\n## More\n\n| d | none |\n"
    rows = "| a, with its b (3.10) | fast |\n| d | tests |\n"
    assert unreasoned(project, page.format(rows)) == set()
    assert unreasoned(project, page.format("| a, b | fast |\n| d |  |\n")) == {"d"}
    assert unreasoned(project, page.format(f"{rows}| e | lint |\n")) == {"e"}


def test_every_page_is_in_one_tree_of_the_index():
    made = CONF["trees"]((DOCS / "index.md").read_text(encoding="utf-8"))
    pages = re.findall(r"^.+ <(.+)>$", made, flags=re.MULTILINE)
    assert "Offline <howto/offline>" in made  # by the index's short name, not by the page's title
    there = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(pages) == sorted(there - {"index"})
    assert re.findall(":caption: (.+)", made) == [
        "Tutorials", "How-to guides", "Reference", "Explanation",
    ]  # fmt: skip


def test_links_out_of_docs_become_text():
    text = "[a](../../README.md) [b](../design.md#x) [c](https://c.example) [d](e.json)"
    assert CONF["without_links_outside"](text, "howto") == f"a {text.partition(') ')[2]}"
