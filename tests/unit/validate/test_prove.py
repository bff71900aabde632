"""Proofs as values: what is left out, what a result means, what is recorded, and the page."""

from __future__ import annotations

import dataclasses
import json

import pytest

from stackyard.build import catalog
from stackyard.definitions.document import parse_document
from stackyard.definitions.project import ROOT, load_project
from stackyard.definitions.read import fix as read_fix
from stackyard.definitions.spec import Limit, Place, Witness
from stackyard.report import prove
from stackyard.report.prove_page import PAGE, code, plain, render_page
from stackyard.system.errors import UsageError
from stackyard.validate.prove import plan
from stackyard.validate.prove.judge import Witnessed, judge, symptom_line
from tests.unit import samples


def limit(**changes):
    values = {
        "id": "alpha-limit", "package": "alpha", "stacks": ("toy",), "symptom": "it hangs",
        "why": "so it is", "upstream": "none found", "versions": {"alpha": "==1.2.0"}, "python": "",
        "devices": ("cpu", "cuda"), "instead": "another way",
        "witness": Witness(command=("try",), fails_with="hung", seconds=60), "remove_when": "never",
    }  # fmt: skip
    return Limit(**{**values, **changes})


def rule(number):
    return dataclasses.replace(samples.remedy().replace[0], file=f"alpha/{number}.py")


def image(**changes):
    return catalog.resolve(samples.definitions(**changes), "toy", "cpu")


def proofs(found, limits=(), only=""):
    return plan.proofs(found, limits, only)


# Which proofs there are, and what they leave out


def test_a_fix_is_left_out_alone():
    fixes = {"alpha-old": samples.fix(), "alpha-two": samples.fix(id="alpha-two")}
    stack = samples.stack(fixes=tuple(fixes))
    (first, second), elsewhere = proofs(image(fixes=fixes, stacks={"toy": stack}))
    assert [fix["id"] for fix in json.loads(first.fixes)] == ["alpha-two"]
    assert [fix["id"] for fix in json.loads(second.fixes)] == ["alpha-old"]
    assert first.with_ == first.without == ("true",)
    assert (first.kind, elsewhere) == ("fix", {})


def test_a_place_of_a_fix_is_left_out_alone():
    witness = Witness(command=("look",), fails_with="two is old", seconds=60)
    fix = samples.fix(
        remedy=samples.remedy(replace=(rule(1), rule(2)), env={"A": "1"}),
        places=(Place(replacement=2, witness=witness),),
    )
    (whole, place), _ = proofs(image(fixes={"alpha-old": fix}))
    assert (whole.id, place.id) == ("alpha-old", "alpha-old#2")
    assert json.loads(whole.fixes) == [] and whole.unset == ("A",)
    (kept,) = json.loads(place.fixes)
    assert [entry["file"] for entry in kept["replace"]] == ["alpha/1.py"] and place.unset == ()
    assert place.without == ("look",)


def test_a_fix_of_a_build_is_left_out_of_that_build():
    fix = samples.fix(
        id="beta-build", remedy=samples.remedy(replace=(), build_env={"B": "1", "C": "2"})
    )
    other = samples.fix(id="beta-more", remedy=samples.remedy(replace=(), build_env={"C": "3"}))
    wheel = samples.wheel(fixes=("beta-build", "beta-more"), env={"OWN": "1"})
    found = image(
        fixes={"alpha-old": samples.fix(), "beta-build": fix, "beta-more": other},
        wheels={"beta": wheel},
    )
    (_, built, _), _ = proofs(found)
    assert (built.id, built.wheel, built.fixes) == ("beta-build", "beta", None)
    (without,) = plan.without_fix(found, "beta-build").wheels
    assert [fix.id for fix in without.fixes] == ["beta-more"]
    assert dict(without.env) == {"OWN": "1", "C": "3"}


def test_a_limit_is_tried_both_ways():
    (_, found), _ = proofs(image(), [limit(), limit(id="other", stacks=("another",))])
    assert (found.id, found.kind) == ("alpha-limit", "limit")
    assert (found.with_, found.without) == (("try", "right"), ("try", "wrong"))
    assert found.fixes is None


def test_what_is_not_for_a_base_is_told():
    fix = samples.fix(devices=("cuda",))
    found, elsewhere = proofs(image(fixes={"alpha-old": fix}), [limit(versions={"alpha": "==9"})])
    assert found == ()
    assert elsewhere == {"alpha-old": "only for cuda", "alpha-limit": "alpha 1.2.0 is not ==9"}


def test_one_fix_can_be_asked_for():
    found, _ = proofs(image(), [limit()], "alpha-limit")
    assert [proof.id for proof in found] == ["alpha-limit"]
    definitions = samples.definitions(limits={"alpha-limit": limit()})
    plan.require_known(definitions, "alpha-limit")
    with pytest.raises(UsageError, match="there is no fix or limit 'alpha-limt'") as caught:
        plan.require_known(definitions, "alpha-limt")
    assert "alpha-limit" in caught.value.why


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"limits": {"alpha-limit": limit(versions={"alpha": "==9"})}},
         "images/limits/alpha-limit.yml applies to no stack on any base"),
        ({"fixes": {"alpha-old": samples.fix(), "left": samples.fix(id="left")}},
         "images/fixes/left.yml applies to no stack on any base"),
        ({"fixes": {"alpha-old": samples.fix(versions={"alpha": "==9"})}},
         "images/fixes/alpha-old.yml applies to no stack on any base"),
    ],
)  # fmt: skip
def test_what_applies_nowhere_is_refused(changes, said):
    definitions = samples.definitions(**changes)
    with pytest.raises(UsageError, match=said):
        plan.require_used(definitions, [catalog.resolve(definitions, "toy", "cpu")])


def test_what_is_not_locked_proves_nothing():
    definitions = samples.definitions(locks={})
    with pytest.raises(UsageError, match="alpha-old"):
        plan.require_used(definitions, [catalog.resolve(definitions, "toy", "cpu")])


@pytest.mark.parametrize("stages", [
    plan.files_stages(image()), plan.wheel_stages("beta"), plan.back_stages(),
])  # fmt: skip
def test_stages_end_with_files_alone(stages):
    assert stages.rstrip().endswith("FROM scratch AS taken-back\nCOPY --from=taken /taken /")
    assert stages.count("FROM ") == 2 and "\n&&" not in stages


def test_what_fixes_touch_is_taken_before_they_are_applied():
    assert "FROM packages AS taken" in plan.files_stages(image())
    assert "alpha/a.py" in plan.files_stages(image())


# What a result means


def seen(code, output=""):
    return Witnessed(code=code, output=output, seconds=1.0)


@pytest.mark.parametrize(
    ("with_", "without", "word", "why"),
    [
        (seen(0), seen(1, "it is old\n"), "proven", ""),
        (seen(0), seen(0, "old"), "stale", "passes without the fix"),
        (seen(0), seen(1, "another error"), "other symptom", "exit code 1, another error"),
        (seen(0), seen(124, "old"), "other symptom", "did not end in 60 s"),
        (seen(1, "boom"), seen(1, "old"), "not repaired", "fails with the fix: exit code 1, boom"),
        (seen(137), seen(1, "old"), "not repaired", "did not end in 60 s"),
        (seen(0), "the other fixes need this one", "not left out", "need this one"),
    ],
)
def test_a_result_has_a_verdict(with_, without, word, why):
    (proof,), _ = proofs(image())
    verdict = judge(proof, with_, without)
    assert verdict.word == word and why in verdict.why
    assert bool(verdict.why) == (word != "proven")


def test_of_a_limit_it_is_said_which_way():
    (proof,), _ = proofs(image(), [limit()], "alpha-limit")
    assert judge(proof, seen(0), seen(0)).why == "its witness passes the wrong way"
    assert "the right way" in judge(proof, seen(1), seen(1, "hung")).why


@pytest.mark.parametrize(
    ("pattern", "output", "line"),
    [
        ("old", "first\n  it is old now\nlast\n", "it is old now"),
        (r"one[\s\S]*two", "one\nand\nthen two!\nrest", "then two!"),
        ("gone", "first\n", ""),
        ("old", "old", "old"),
    ],
)
def test_the_line_of_a_symptom_is_shown_whole(pattern, output, line):
    assert symptom_line(pattern, output) == line


# What is recorded


def value(found, *, word=1):
    (proof,), _ = proofs(found)
    verdict = judge(proof, seen(0), seen(word, "it is old"))
    return prove.prove_report(
        found, samples_info(), [verdict], {}, run="r", started="2026-01-02T03:04:05+00:00",
        seconds=2.0, host={},
    )  # fmt: skip


def samples_info():
    from stackyard.system.image import ImageInfo

    return ImageInfo(id="sha256:1", tags=(), labels={}, env=(), size=1, layers=())


def test_a_report_says_what_was_seen():
    good, bad = value(image()), value(image(), word=0)
    assert (good["outcome"], bad["outcome"]) == ("passed", "failed")
    (proof,) = good["proofs"]
    assert (proof["verdict"], proof["symptom"]) == ("proven", "it is old")
    assert bad["proofs"][0]["why"] and bad["proofs"][0]["last_lines"] == "it is old"


def test_only_what_is_proven_is_recorded_and_the_rest_is_forgotten():
    definitions, found = samples.definitions(), image()
    once = prove.record({}, definitions, [(found, value(found))], whole=True)
    entry = once["toy"]["alpha-old"]
    assert entry["failed"] == "it is old" and entry["recorded"] == "2026-01-02"
    assert entry["versions"] == {"alpha": "1.2.0", "python": "3.11"}
    assert prove.record(once, definitions, [(found, value(found, word=0))], whole=True)["toy"] == {}
    before = {"toy": {"another": {}}, "other": {"x": {}}}
    kept = prove.record(before, definitions, [(found, value(found))], whole=False)
    assert sorted(kept["toy"]) == ["alpha-old", "another"] and kept["other"] == {"x": {}}


def out_of_date(record, definitions, image, ids):
    """Proofs of an image that were never recorded, or of another definition or other versions."""
    have = record.get(image.stack.name, {})
    now = {name: plan.digest(prove.definition(definitions, name), image) for name in ids}
    return [f"{image.stack.name}: {n}" for n in ids if have.get(n, {}).get("of") != now[n]]


def test_a_record_is_of_one_definition_and_its_versions():
    definitions, found = samples.definitions(), image()
    kept = prove.record({}, definitions, [(found, value(found))], whole=True)
    assert out_of_date(kept, definitions, found, ["alpha-old"]) == []
    reworded = samples.definitions(fixes={"alpha-old": samples.fix(symptom="another")})
    assert out_of_date(kept, reworded, found, ["alpha-old"]) == []
    witness = Witness(command=("true",), fails_with="gone", seconds=60)
    changed = samples.definitions(fixes={"alpha-old": samples.fix(witness=witness)})
    assert out_of_date(kept, changed, found, ["alpha-old"]) == ["toy: alpha-old"]
    assert out_of_date({}, definitions, found, ["alpha-old"]) == ["toy: alpha-old"]


# This project's


def project():
    return load_project()


def recorded():
    return json.loads((ROOT / prove.recorded_path("cpu")).read_text(encoding="utf-8"))


def test_every_fix_and_limit_of_this_project_is_used():
    definitions = project().definitions
    plan.require_used(
        definitions,
        [catalog.resolve(definitions, s, b) for s in definitions.stacks for b in definitions.bases],
    )


def test_every_proof_of_this_project_is_recorded_as_it_is_now():
    definitions = project().definitions
    wrong, known = [], {}
    for name in definitions.stacks:
        found = catalog.resolve(definitions, name, "cpu")
        ids = [proof.id for proof in plan.proofs(found, definitions.limits.values())[0]]
        wrong += out_of_date(recorded(), definitions, found, ids)
        known[name] = sorted(ids)
    assert wrong == [], "type: invoke prove --record"
    assert {name: sorted(kept) for name, kept in recorded().items()} == known


def test_the_page_is_as_definitions_and_proofs_say():
    made = render_page(project().definitions, recorded())
    assert (ROOT / PAGE).read_text(encoding="utf-8") == made, "type: invoke prove --page"


# The page


def test_the_page_shows_symptom_remedy_and_proof():
    definitions, found = samples.definitions(limits={"alpha-limit": limit()}), image()
    kept = prove.record({}, definitions, [(found, value(found))], whole=True)
    made = render_page(definitions, kept)
    assert "### alpha-old\n\n- **Symptom**: old is old\n" in made
    assert "1 replacement in `alpha/a.py` (installed files)" in made
    assert "| toy | `it is old` | passes | alpha 1.2.0, python 3.11 | 2026-01-02 |" in made
    assert "- **Instead**: another way\n" in made
    assert "none recorded" in made  # of the limit


def test_text_of_a_definition_stays_text():
    assert plain("a <b> *c*\n d|e") == r"a \<b\> \*c\* d\|e"
    assert code("a `b` |c") == "`` a `b` \\|c ``"


# What a file may say


def read_limit(text):
    problems = []
    top = parse_document(text, file="f", problems=problems)
    read_fix.read_limit(top, "alpha-limit", ["toy"])
    top.done()
    return [f"{problem.key}: {problem.message}" for problem in problems]


LIMIT = """\
id: alpha-limit
package: alpha
stacks: [toy]
symptom: it hangs
why: so it is
upstream: none found
applies_to: {versions: {alpha: "==1.2.0"}}
instead: another way
witness:
  command: [try]
  fails_with: hung
remove_when: never
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", []),
        ("[toy]", "[]", ["stacks: names no stack, so nothing would prove it"]),
        ("[toy]", "[toi]", ["stacks: unknown stack 'toi'; did you mean 'toy'?"]),
        ("fails_with: hung", "fails_with: '.*'", ["witness.fails_with: found in every output"]),
        ("fails_with: hung", "fails_with: '('",
         ["witness.fails_with: not a regular expression: missing ), unterminated subpattern at"
          " position 0"]),
        ("command: [try]", "command: []", ["witness.command: names no command"]),
        ("fails_with: hung", "fails_with: hung\n  seconds: 301",
         ["witness.seconds: must be 1 to 300"]),
        ("instead: another way\n", "", ["instead: required key is missing"]),
        ("upstream: none found\n", "", ["upstream: required key is missing"]),
    ],
)  # fmt: skip
def test_a_limit_says_what_it_may(old, new, said):
    assert read_limit(LIMIT.replace(old, new) if old else LIMIT) == said


PLACED = """
places:
  - replacement: {number}
    fails_with: old
remedy:
  replace:
    - {{file: a.py, pattern: a, replacement: b, count: 1, fixed: b}}
"""


@pytest.mark.parametrize(("number", "said"), [(1, []), (2, ["there are 1 replacements"])])
def test_a_place_is_one_of_the_replacements(number, said):
    problems = []
    head = samples.FILES["images/fixes/alpha-old.yml"].replace("remedy:", "remedy_:")
    text = head.partition("remedy_:")[0] + PLACED.format(number=number)
    text += "witness: {command: [x], fails_with: old}\nremove_when: never\n"
    top = parse_document(text, file="f", problems=problems)
    read_fix.read_fix(top, "alpha-old", {})
    top.done()
    assert [problem.message for problem in problems] == said


@pytest.mark.parametrize(
    ("remedy", "said"),
    [
        ("override: [a==1]\n  without: ['a==2 --hash=sha256:" + "0" * 64 + "']", []),
        ("override: [a==1]", ["must be given with override or exclude, and only with them"]),
        ("exclude: [a]\n  without: [a==2]",
         ["must be NAME==VERSION --hash=sha256:..., not 'a==2'"]),
    ],
)  # fmt: skip
def test_what_is_installed_without_a_fix_is_pinned_by_hash(remedy, said):
    problems = []
    text = samples.FILES["images/fixes/alpha-old.yml"]
    start, end = text.index("  replace:"), text.index("witness:")
    top = parse_document(f"{text[:start]}  {remedy}\n{text[end:]}", file="f", problems=problems)
    read_fix.read_fix(top, "alpha-old", {})
    assert [problem.message for problem in problems] == said
