"""Leaving out of an image what packages bring and nothing reads."""

import pytest

from stackyard.inside import leave_out
from stackyard.inside.leave_out import StillImported, compile_patterns

FILES = {
    "alpha/__init__.py": "from alpha import core\n",
    "alpha/core.py": "x = 1\n",
    "alpha/bin/manager": "M",
    "alpha/bin/test_all": "T" * 1000,
    "alpha/tests/__init__.py": "",
    "alpha/tests/test_core.py": "from alpha.tests import data\n",
    "alpha/tests/data/big.bin": "B" * 500,
}
PATTERNS = ["alpha/bin", "**/tests"]
KEEP = ["alpha/bin/manager"]


def install(root, name, files, version="1.0", extra=()):
    """A distribution with its RECORD, as an installer leaves it."""
    info = f"{name}-{version}.dist-info"
    files = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
             f"Version: {version}\n"}  # fmt: skip
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    lines = [f"{path},sha256=x,{len(text)}" for path, text in files.items()]
    record = root / info / "RECORD"
    record.write_text("\n".join([*lines, *extra, f"{info}/RECORD,,"]) + "\n")
    return record


@pytest.fixture
def root(tmp_path):
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


def run(root, *, before=(), patterns=PATTERNS, keep=KEEP):
    return leave_out.leave_out(root, set(before), patterns, keep)


def there(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*"))


def listed(record):
    return [line.split(",")[0] for line in record.read_text().splitlines()]


def contents(root):
    return {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}


# What a pattern names


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/bin", ["a/bin", "a/bin/x", "a/bin/x/y"], ["a/binary", "a", "b/a/bin"]),
        ("**/tests", ["tests", "tests/x", "a/tests", "a/b/tests/c"], ["a/mytests", "a/tests.py"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b/z"], ["b", "a/xb"]),
        ("a/*.so", ["a/x.so", "a/.so"], ["a/x/y.so", "a/x.so.1"]),
        ("a/l?b", ["a/lib"], ["a/lb", "a/l/b"]),
        ("a/b.c", ["a/b.c"], ["a/bxc"]),
    ],
)
def test_a_pattern_names_files_and_all_below_a_folder(pattern, yes, no):
    found = compile_patterns([pattern])
    assert [path for path in (*yes, *no) if found.fullmatch(path)] == yes


def test_no_pattern_names_nothing():
    assert not compile_patterns([]).fullmatch("")
    assert not compile_patterns([]).fullmatch("a")


# What goes


def test_what_is_named_goes_with_its_folders_and_what_is_kept_stays(root):
    record = install(root, "alpha", FILES)
    assert run(root) == (4, 1000 + 500 + len(FILES["alpha/tests/test_core.py"]))
    assert there(root) == [
        "alpha", "alpha-1.0.dist-info", "alpha-1.0.dist-info/METADATA",
        "alpha-1.0.dist-info/RECORD", "alpha/__init__.py", "alpha/bin", "alpha/bin/manager",
        "alpha/core.py",
    ]  # fmt: skip
    assert record.stat().st_mode & 0o777 == 0o644


def test_the_record_says_what_is_there_and_its_other_lines_are_as_they_were(root):
    odd = ["../../../bin/alpha,sha256=y,9", '"alpha/a,b.py",sha256=z,1', "alpha/gone.py,,"]
    record = install(root, "alpha", FILES, extra=odd)
    before = record.read_text().splitlines()
    run(root)
    gone = ("alpha/tests/", "alpha/bin/test_all")
    assert record.read_text().splitlines() == [x for x in before if not x.startswith(gone)]


def test_a_second_run_changes_nothing(root):
    install(root, "alpha", FILES)
    run(root)
    before = contents(root)
    assert run(root) == (0, 0)
    assert contents(root) == before


def test_a_distribution_from_before_the_step_keeps_everything(root):
    install(root, "alpha", FILES)
    beta = install(root, "beta", {"beta/tests/b.py": "", "beta/b.py": ""}, "2.0")
    before = there(root / "alpha")
    assert run(root, before=["alpha==1.0"])[0] == 1
    assert there(root / "alpha") == before
    assert listed(beta) == ["beta/b.py", "beta-2.0.dist-info/METADATA", "beta-2.0.dist-info/RECORD"]


def test_another_version_than_before_is_new(root):
    install(root, "alpha", FILES)
    assert run(root, before=["alpha==0.9", "alpha==1.0.1"])[0] == 4


def test_a_file_that_also_an_earlier_distribution_has_stays(root):
    install(root, "old", {"tests/__init__.py": ""})
    record = install(root, "new", {"tests/__init__.py": "", "tests/new.py": ""})
    assert run(root, before=["old==1.0"])[0] == 1
    assert there(root / "tests") == ["__init__.py"]
    assert "tests/__init__.py" in listed(record)


def test_a_file_that_nobody_recorded_stays_and_so_does_its_folder(root):
    install(root, "alpha", FILES)
    (root / "alpha/tests/mine.txt").write_text("mine")
    run(root)
    assert there(root / "alpha/tests") == ["mine.txt"]


def test_the_licences_of_a_distribution_stay(root):
    path = "alpha-1.0.dist-info/licenses/test/LICENSE"
    record = install(root, "alpha", {path: "MIT"})
    assert run(root, patterns=["**/test"]) == (0, 0)
    assert path in listed(record)


# Nothing outside


@pytest.mark.parametrize("path", ["../out/tests/x", "a/../../out/tests/x", "./../out/tests/x"])
def test_a_recorded_path_that_leads_outside_is_not_followed(root, path):
    outside = root.parent / "out/tests/x"
    outside.parent.mkdir(parents=True)
    outside.write_text("not ours")
    (root / "a").mkdir()
    record = install(root, "alpha", {}, extra=[f"{path},,", f"{outside},,"])
    assert run(root, patterns=["**/tests", "**/x", "**/out"], keep=[]) == (0, 0)
    assert outside.read_text() == "not ours"
    assert path in listed(record)


def test_a_folder_that_is_a_link_is_not_followed(root):
    outside = root.parent / "out"
    outside.mkdir()
    (outside / "x.py").write_text("not ours")
    record = install(root, "alpha", {"alpha/a.py": ""}, extra=["alpha/tests/x.py,,"])
    (root / "alpha/tests").symlink_to(outside)
    assert run(root) == (0, 0)
    assert (outside / "x.py").read_text() == "not ours"
    assert "alpha/tests/x.py" in listed(record)


def test_a_link_that_is_recorded_goes_and_what_it_points_to_stays(root):
    outside = root.parent / "out"
    outside.mkdir()
    (outside / "x").write_text("not ours")
    install(root, "alpha", {"alpha/a.py": ""}, extra=["alpha/tests/x,,", "alpha/tests/all,,"])
    (root / "alpha/tests").mkdir()
    (root / "alpha/tests/x").symlink_to(outside / "x")
    (root / "alpha/tests/all").symlink_to(outside)
    assert run(root)[0] == 2
    assert there(root / "alpha") == ["a.py"]
    assert (outside / "x").read_text() == "not ours"


def test_a_root_that_is_reached_by_a_link_is_the_same_root(root):
    install(root, "alpha", FILES)
    (root.parent / "link").symlink_to(root)
    assert run(root.parent / "link")[0] == 4


# What would break


@pytest.mark.parametrize(
    "text",
    [
        "import alpha.tests.data2\n",
        "from alpha.tests.data2 import x\n",
        "from alpha.tests import data2 as d, other\n",
        "from .tests import (\n    other,\n    data2,\n)\n",
        "def f():\n    from . import tests\n",
        "try:\n    from alpha import (core,\n        tests)\nexcept ImportError:\n    pass\n",
    ],
)
def test_nothing_changes_where_a_file_that_stays_imports_one_that_goes(root, text):
    install(root, "alpha", {**FILES, "alpha/tests/data2.py": "", "alpha/use.py": text})
    before = contents(root)
    with pytest.raises(StillImported, match=r"^alpha/use.py imports alpha/tests(/data2)?, which"):
        run(root)
    assert contents(root) == before


@pytest.mark.parametrize(
    "text",
    [
        "from alpha.core import tests\n",
        "# from alpha import tests\n",
        "from alpha import tests, and no Python\n",
        "import tests\n",
    ],
)
def test_another_module_of_that_name_does_not_matter(root, text):
    install(root, "alpha", {**FILES, "alpha/use.py": text})
    assert run(root)[0] == 4


def test_what_is_imported_may_be_kept(root):
    use = {"alpha/use.py": "from .tests import other\n", "alpha/tests/other.py": ""}
    install(root, "alpha", {**FILES, **use})
    kept = ["alpha/tests/__init__.py", "alpha/tests/other.py"]
    assert run(root, keep=[*KEEP, *kept])[0] == 3
    assert there(root / "alpha/tests") == ["__init__.py", "other.py"]


# The command line


def test_the_command_says_in_one_line_how_much_it_left_out(root, tmp_path, capsys):
    install(root, "alpha", {**FILES, "alpha/tests/more.bin": "x" * 2_000_000})
    before = tmp_path / "before"
    before.write_text("other==1.0\n")
    words = ["--before", str(before), "--root", str(root), *PATTERNS, "--keep", *KEEP]
    assert leave_out.main(words) == 0
    assert capsys.readouterr().out == "left out: 5 files, 2.0 MB\n"


def test_the_command_fails_and_says_what_to_write_where_an_import_would_break(root, capsys):
    install(root, "alpha", {**FILES, "alpha/use.py": "from alpha import tests\n"})
    before = root.parent / "before"
    before.write_text("")
    assert leave_out.main(["--before", str(before), "--root", str(root), *PATTERNS]) == 1
    assert capsys.readouterr().err == (
        "alpha/use.py imports alpha/tests, which would be left out\n"
        "Name it under `except` of `left_out` in images/common.yml.\n"
    )
