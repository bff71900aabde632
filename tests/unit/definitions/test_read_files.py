"""One definition file to one value: what each kind of file may say."""

from functools import partial

import pytest

from stackyard.definitions.document import parse_document
from stackyard.definitions.read import files
from stackyard.definitions.read import fix as read_fix
from stackyard.definitions.spec import HostBase, Layout, Replacement, Witness
from tests.unit import samples

READERS = {
    "images/common.yml": ("", lambda top, _: files.read_common(top)),
    "images/bases/cpu.yml": ("cpu", files.read_base),
    "images/fixes/alpha-old.yml": (
        "alpha-old",
        partial(read_fix.read_fix, added={"alpha/new.py": "x"}),
    ),
    "images/wheels/beta.yml": ("beta", files.read_wheel),
    "images/toy/stack.yml": ("toy", files.read_stack),
}


def look(file, *changes, name=None):
    """Read a sample file with texts replaced: the value, and the problems without their place."""
    text = samples.FILES[file]
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    problems = []
    top = parse_document(text, file=file, problems=problems)
    usual, reader = READERS[file]
    value = reader(top, name or usual)
    top.done()
    return value, [f"{p.key}: {p.message}" for p in problems]


def problems(file, *changes, **named):
    return look(file, *changes, **named)[1]


@pytest.mark.parametrize("file", READERS)
def test_a_good_file_has_no_problem(file):
    assert problems(file) == []


@pytest.mark.parametrize(
    ("file", "key", "kind"),
    [
        ("images/common.yml", "system", "required key is missing"),
        ("images/bases/cpu.yml", "summary", "required key is missing"),
        ("images/bases/cpu.yml", "platform", "required key is missing"),
        ("images/fixes/alpha-old.yml", "symptom", "required key is missing"),
        ("images/fixes/alpha-old.yml", "upstream", "required key is missing"),
        ("images/fixes/alpha-old.yml", "remove_when", "required key is missing"),
        ("images/toy/stack.yml", "summary", "required key is missing"),
    ],
)
def test_a_required_key_that_is_missing_is_named(file, key, kind):
    (line,) = [x for x in samples.FILES[file].splitlines() if x.startswith(f"{key}:")]
    assert problems(file, (f"{line}\n", "")) == [f"{key}: {kind}"]


def test_blocks_that_are_missing_are_named():
    fix = samples.FILES["images/fixes/alpha-old.yml"]
    head = fix[: fix.index("applies_to")]
    found = []
    top = parse_document(head + "remove_when: x\n", file="f", problems=found)
    read_fix.read_fix(top, "alpha-old", {})
    assert [str(p) for p in found] == [
        f"f:1: {key}: required key is missing" for key in ("applies_to", "witness", "remedy")
    ]


# Names


@pytest.mark.parametrize(
    ("file", "key", "name"),
    [
        ("images/bases/cpu.yml", "name", "gpu"),
        ("images/fixes/alpha-old.yml", "id", "other"),
        ("images/wheels/beta.yml", "package", "gamma"),
        ("images/toy/stack.yml", "name", "top"),
    ],
)
def test_a_name_is_that_of_its_file_or_folder(file, key, name):
    usual = READERS[file][0]
    said = f"{key}: must be {name!r}, like its file or folder, not {usual!r}"
    assert problems(file, name=name) == [said]


@pytest.mark.parametrize("name", ["Toy", "-toy", "to_y", "to y", "tóy"])
def test_a_name_is_lower_case_letters_digits_and_dashes(name):
    said = "name: a name is lower-case letters, digits and dashes"
    assert said in problems("images/toy/stack.yml", name=name)


# Bases


def test_a_base_is_read():
    found = look("images/bases/cpu.yml")[0]
    assert found.reference == "stackyard/base:cpu"
    assert found.bootstrap.packages == ("python3",)
    assert found.entrypoint == ("/usr/bin/tini", "--")
    assert dict(found.env) == {"OMP_NUM_THREADS": "1"}


def test_facts_of_a_base_carry_their_source():
    change = ("env:\n", "facts:\n  cuda: {value: '13.1'}\nenv:\n")
    assert problems("images/bases/cpu.yml", change) == [
        "facts.cuda.source: required key is missing"
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"3.11"', "3.10", "python: must be text; YAML reads 3.10 as float: write '3.10'"),
        ('"3.11"', "new", "python: not a version: Invalid version: 'new'"),
        ("device: cpu", "device: gpu", "device: unknown value 'gpu'; did you mean 'cpu'?"),
        ("  suite: bookworm\n", "", "bootstrap.suite: required key is missing"),
        ("suite:", "siute:", "bootstrap.suite: required key is missing"),
        ("torch==2.0.0", "torch>=2", "torch: must be pinned with one ==, not 'torch>=2'"),
        ("torch==2.0.0", "torch==2.*", "torch: must be pinned with one ==, not 'torch==2.*'"),
        ("torch==2.0.0", "torch", "torch: must be pinned with one ==, not 'torch'"),
    ],
)
def test_what_is_wrong_with_a_base_is_said(old, new, said):
    assert said in problems("images/bases/cpu.yml", (old, new))


HOST = """host:
  paths: [/usr, /opt/*]
  distributions: [torch]
provides:
  torch: {value: "2", source: seen}
  numpy: {source: seen}
given_system: [g++]
unpack: debian/bookworm
unpack_with: [libwrap0]
"""
BOOTSTRAP = """bootstrap:
  suite: bookworm
  packages: [python3]
"""


def test_a_base_out_of_a_machines_files_is_read():
    value, said = look("images/bases/cpu.yml", (BOOTSTRAP, HOST))
    assert said == []
    assert value.host == HostBase(
        paths=("/usr", "/opt/*"), exclude=(), keep=(), distributions=("torch",)
    )
    assert value.provided == {"torch": "2", "numpy": ""}
    assert (value.given_system, value.unpack, value.unpack_with) == (
        ("g++",),
        "debian/bookworm",
        ("libwrap0",),
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("/usr, /opt/*", "usr", "host.paths: must be a path below /, not 'usr'"),
        ("/usr, /opt/*", "/", "host.paths: must be a path below /, not '/'"),
        ("/usr, /opt/*", "/usr/../root", "host.paths: must be a path below /, not '/usr/../root'"),
        ("[/usr, /opt/*]", "[]", "host.paths: names nothing to carry"),
        ("[torch]", "[]", "host.distributions: names nothing to carry"),
        ("  distributions: [torch]\n", "", "host.distributions: required key is missing"),
        ("host:\n", BOOTSTRAP + "host:\n",
         "host: a base is made of packages or of a host's files, not of both"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_base_out_of_files_is_said(old, new, said):
    assert HOST.count(old) == 1
    assert problems("images/bases/cpu.yml", (BOOTSTRAP, HOST.replace(old, new))) == [said]


def test_only_a_base_out_of_files_may_leave_a_provided_version_open():
    pulled = HOST[HOST.index("provides") :]
    found = problems("images/bases/cpu.yml", (BOOTSTRAP, pulled))
    assert found == ["provides.numpy.value: required key is missing"]


def test_what_is_no_requirement_at_all_is_said():
    (said,) = problems("images/bases/cpu.yml", ("torch==2.0.0", "torch 2"))
    assert said.startswith("torch: not a requirement: 'torch 2': ")


# Fixes


def test_a_fix_is_read():
    found = look("images/fixes/alpha-old.yml")[0]
    assert (dict(found.versions), found.devices) == ({"alpha": "==1.2.0"}, ("cpu",))
    assert found.remedy.stage == "installed"
    assert found.remedy.replace == (
        Replacement(file="alpha/a.py", pattern="^old$", replacement="new", count=1, fixed="^new$"),
    )
    assert found.witness == Witness(command=("true",), fails_with="old", seconds=60)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'^old$'", "'('", "remedy.replace[0].pattern: not a regular expression: missing ),"
         " unterminated subpattern at position 0"),
        ("'^new$'", "'*'", "remedy.replace[0].fixed: not a regular expression: nothing to repeat"
         " at position 0"),
        ("count: 1", "count: 0", "remedy.replace[0].count: must be at least 1"),
        ("count: 1", "count: '1'", "remedy.replace[0].count: must be a whole number"),
        ("alpha/a.py", "/etc/passwd", "remedy.replace[0].file: must be relative to site-packages"),
        ("alpha/a.py", "a/../../b", "remedy.replace[0].file: must be relative to site-packages"),
        ("alpha/a.py", "a; b", "remedy.replace[0].file: must be letters, digits, and -_.+"
         " between slashes"),
        ("file: alpha", "fiel: alpha",
         "remedy.replace[0].fiel: unknown key; did you mean 'file'?"),
        ("[cpu]", "[cuda, tpu]", "applies_to.devices: unknown 'tpu'; did you mean 'cpu'?"),
        ("==1.2.0", "1.2.0",
         "applies_to.versions: not a version specifier: Invalid specifier: '1.2.0'"),
        ("  devices: [cpu]", "  python: '3'",
         "applies_to.python: not a version specifier: Invalid specifier: '3'"),
        ("  replace:", "  stage: zzz\n  replace:",
         "remedy.stage: unknown value 'zzz'; known: installed, source"),
        ("  replace:", "  override: [omegaconf]\n  replace:",
         "remedy.override: must be pinned with one ==, not 'omegaconf'"),
        ("fails_with: old", "fails: old", "witness.fails: unknown key; did you mean 'fails_with'?"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_fix_is_said(old, new, said):
    assert said in problems("images/fixes/alpha-old.yml", (old, new))


def test_a_fix_adds_modules_that_lie_beside_it():
    file = "images/fixes/alpha-old.yml"
    value, said = look(file, ("  replace:", "  add: [alpha/new.py]\n  replace:"))
    assert (value.remedy.add, said) == ({"alpha/new.py": "x"}, [])
    said = problems(file, ("  replace:", "  add: [alpha/now.py]\n  replace:"))
    assert said == [
        "remedy.add: images/fixes/files has no 'alpha/now.py'; did you mean 'alpha/new.py'?"
    ]


def test_a_fix_that_does_nothing_is_refused():
    text = samples.FILES["images/fixes/alpha-old.yml"]
    rules = text[text.index("  replace:") : text.index("witness:")]
    assert problems("images/fixes/alpha-old.yml", (rules, "  env: {}\n")) == [
        "remedy: does nothing: give replace, add, env, build_env, override or exclude"
    ]


# Wheels


def test_a_wheel_is_read():
    found = look("images/wheels/beta.yml", ("fixes:", "compiler: true\nfixes:"))[0]
    assert (found.package, found.version) == ("beta", "3.0")
    assert (found.compiler, found.torch, found.fixes) == (True, False, ("beta-build",))


def test_a_wheel_pins_what_its_build_requires():
    said = "requires: must be pinned with one ==, not 'setuptools'"
    assert problems("images/wheels/beta.yml", ("setuptools==80.0.0", "setuptools")) == [said]


def test_an_unquoted_version_of_a_wheel_is_refused():
    said = "version: must be text; YAML reads 3.0 as float: write '3.0'"
    assert problems("images/wheels/beta.yml", ('"3.0"', "3.0")) == [said]


# Stacks


def test_a_stack_is_read():
    found = look("images/toy/stack.yml")[0]
    assert (dict(found.packages), found.builds) == ({"alpha": "1.2.0", "beta": "3.0"}, ("beta",))
    assert found.smoke.layouts == (
        Layout(name="one", ranks=1, args=(), launcher="torchrun", options={}),
        Layout(name="two", ranks=2, args=(), launcher="torchrun", options={}),
    )
    assert (found.smoke.tolerance, found.smoke.start_seconds) == (1e-3, 90)
    assert found.smoke.layout("two").ranks == 2


STACK = [
    ('"1.2.0"', "1.20", "packages.alpha: must be text; YAML reads 1.20 as float: write '1.20'"),
    ('"1.2.0"', '">=1"', "packages: alpha: not an exact version: Invalid version: '>=1'"),
    ("[alpha-old]", "[alpha-old, alpha-old]", "fixes: 'alpha-old' is named 2 times"),
    ("smoke:", "smoek:", "smoek: unknown key; did you mean 'smoke'?"),
    ("smoke:", "smoek:", "smoke: required key is missing"),
    ("torchrun", "torchrn", "smoke.launcher: unknown value 'torchrn'; did you mean 'torchrun'?"),
    ("updates: 40", "updates: 39", "smoke.updates: a smoke has at least 40 updates"),
    ("save_at: 20", "save_at: 40", "smoke.save_at: must lie between 0 and updates"),
    ("save_at: 20", "save_at: 0", "smoke.save_at: must lie between 0 and updates"),
    ("reference: one", "reference: ones",
     "smoke.reference: unknown layout 'ones'; did you mean 'one'?"),
    ("reference: one", "reference: two", "smoke.reference: 'two' must have 1 rank"),
    ("resume: two", "resume: ten", "smoke.resume: unknown layout 'ten'; known: one, two"),
    ("two: {ranks: 2}", "two: {ranks: 3}", "smoke.layouts.two.ranks: must be 1 or 2"),
    ("two: {ranks: 2}", "two: {}", "smoke.layouts.two.ranks: required key is missing"),
    ("two: {ranks: 2}", "two: {ranks: 2, arg: []}",
     "smoke.layouts.two.arg: unknown key; did you mean 'args'?"),
    ("two: {ranks: 2}", "two: {ranks: 2, options: {zero_stage: '2'}}",
     "smoke.layouts.two.options: torchrun with 2 ranks takes none"),
    ("two: {ranks: 2}", "two: {ranks: 2, launcher: accelerate}",
     "smoke.layouts.two.options: accelerate with 2 ranks takes exactly zero_stage"),
    ("--data={data}", "--data={dta}", "smoke.program: unknown {dta}; did you mean 'data'?"),
    ("--data={data}", "--data={data", "smoke.program: '--data={data': expected '}' before end of"
     " string"),
    ("--data={data}", "{0}", "smoke.program: unknown {0}; known: data, gpus, gpus/2, horizon,"
     " ranks, record, save, save_at, text, updates"),
    ("two: {ranks: 2}", "two: {ranks: 2, args: ['{sav}']}",
     "smoke.layouts.two.args: unknown {sav}; did you mean 'save'?"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), STACK)
def test_what_is_wrong_with_a_stack_is_said(old, new, said):
    assert said in problems("images/toy/stack.yml", (old, new))


@pytest.mark.parametrize("tolerance", ["nan", "inf", "-0.1", "0", "0.2"])
def test_a_tolerance_under_which_parity_says_nothing_is_refused(tolerance):
    change = ("  reference:", f"  tolerance: {tolerance}\n  reference:")
    said = ["smoke.tolerance: must lie between 0 and 0.1"]
    assert problems("images/toy/stack.yml", change) == said


def test_a_layout_on_gpus_may_require_other_fused_parts():
    layouts = "{one: {ranks: 1}, two: {ranks: 2, fused: [b]}, none: {ranks: 2, fused: []}}"
    gpus = f"  gpus: {{env: {{}}, fused: [a], layouts: {layouts}}}\n  reference:"
    value, found = look("images/toy/stack.yml", ("  reference:", gpus))
    assert found == []
    assert [value.gpu_smoke.fused_of(name) for name in ("one", "two", "none")] == [
        ("a",),
        ("b",),
        (),
    ]
    on_cpus = ("two: {ranks: 2}", "two: {ranks: 2, fused: [a]}")
    said = "smoke.layouts.two.fused: unknown key; known: args, launcher, options, ranks, tolerance"
    assert problems("images/toy/stack.yml", on_cpus) == [said]


def test_layouts_on_gpus_may_grow_with_their_number():
    layouts = "{one: {ranks: 1}, all-{ranks}: {ranks: 2, grows: yes, args: ['-b={gpus}']},"
    layouts += " two: {ranks: 2}, four: {ranks: 4, grows: yes}}"
    gpus = f"  gpus: {{env: {{}}, resume: 'all-{{ranks}}', layouts: {layouts}}}\n  reference:"
    gpus = gpus.replace("all-{ranks}:", "'all-{ranks}':")
    value, found = look("images/toy/stack.yml", ("  reference:", gpus))
    assert found == []
    ranks = {
        gpus: {layout.name: layout.ranks for layout in value.smoke_on("cuda", gpus).layouts}
        for gpus in (0, 2, 4, 8)
    }
    assert ranks[0] == ranks[2] == {"one": 1, "all-2": 2, "two": 2}
    assert ranks[4] == {"one": 1, "all-4": 4, "two": 2, "four": 4}
    assert ranks[8] == {"one": 1, "all-8": 8, "two": 2, "four": 8}
    assert value.smoke_on("cuda", 8).resume == "all-8"


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("{ranks: 3, grows: yes}", "ranks: must be 2, 4 or 8, as it grows"),
        ("{ranks: 4}", "ranks: must be 1 or 2"),
    ],
)
def test_a_layout_that_cannot_grow_so_is_refused(layout, said):
    gpus = f"  gpus: {{env: {{}}, layouts: {{one: {{ranks: 1}}, two: {{ranks: 2}}, x: {layout}}}}}"
    assert problems("images/toy/stack.yml", ("  reference:", f"{gpus}\n  reference:")) == [
        f"smoke.gpus.layouts.x.{said}"
    ]


def test_what_is_resumed_must_be_there_on_two_gpus():
    layouts = "{one: {ranks: 1}, two: {ranks: 4, grows: yes}}"
    gpus = f"  gpus: {{env: {{}}, layouts: {layouts}}}\n  reference:"
    assert problems("images/toy/stack.yml", ("  reference:", gpus)) == [
        "smoke.gpus.resume: 'two' must fit 2 ranks"
    ]


def test_layouts_of_accelerate_take_their_own_option():
    layout = "two: {ranks: 2, launcher: accelerate, options: {zero_stage: '3'}}"
    value, found = look("images/toy/stack.yml", ("two: {ranks: 2}", layout))
    assert (found, dict(value.smoke.layouts[1].options)) == ([], {"zero_stage": "3"})
