"""Which Pythons are promised, and which environments the scripts make, keep and run tests in."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from stackyard.definitions.project import ROOT
from tests.conftest import first_variants

pytestmark = pytest.mark.once
PROJECT = """\
requires-python = ">=3.10"
classifiers = [
  "Programming Language :: Python :: 3.97",
  "Programming Language :: Python :: 3.98",
  "Programming Language :: Python :: 3.99",
]
"""
# An interpreter, as far as the scripts ask one.
PYTHON = """\
#!/bin/sh
case "$*" in
  *executable*) echo "$0" ;;
  *print*) echo {version} ;;
  --version) echo Python {version} ;;
esac
"""
UV = """\
#!/bin/sh
if [ "$1" = venv ]; then mkdir -p "$6/bin" && cp "$5" "$6/bin/python"; fi
"""
PYTEST = """\
#!/bin/sh
echo "pytest $*"
exit {code}
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def interpreter(path, version):
    program(path, PYTHON.format(version=version))


@pytest.fixture
def tree(tmp_path, allow_processes):
    """A project with an environment of its own (3.98), and nothing else on this machine."""
    for name in ("make-environment", "test-pythons"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "requirements.lock").touch()
    program(tmp_path / ".venv" / "bin" / "uv", UV)
    interpreter(tmp_path / ".venv" / "bin" / "python", "3.98")
    return tmp_path


def run(tree, *argv, **env):
    home = {"PATH": f"{tree}/bin:/usr/bin:/bin", "HOME": str(tree)}
    return subprocess.run([tree / "scripts" / argv[0], *argv[1:]], env={**home, **env},
                          capture_output=True, text=True, check=False)  # fmt: skip


def prepare(tree, version, code=0):
    """An environment that was made before, of an interpreter on PATH."""
    interpreter(tree / "bin" / f"python{version}", version)
    folder = tree / f".venv-{version}"
    interpreter(folder / "bin" / "python", version)
    program(folder / "bin" / "pytest", PYTEST.format(code=code))
    (folder / ".ready").touch()
    later = (tree / "requirements.lock").stat().st_mtime + 10
    os.utime(folder / ".ready", (later, later))
    return folder


def test_readme_classifiers_and_mypy_name_the_same_pythons():
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', text)
    first, last = named[0], named[-1]
    assert named == [str(number) for number in range(int(first), int(last) + 1)]
    assert f'requires-python = ">=3.{first}"' in text
    assert f'python_version = "3.{first}"' in text
    assert f"Python 3.{first} to 3.{last}," in (ROOT / "README.md").read_text()


# Environments


def newer_lock(tree, folder):
    later = (folder / ".ready").stat().st_mtime + 10
    os.utime(tree / "requirements.lock", (later, later))


@pytest.mark.parametrize(
    ("asked", "change", "kept"),
    [
        (None, lambda tree, folder: None, True),
        ("python3.97", lambda tree, folder: None, True),
        ("python3.99", lambda tree, folder: None, False),
        ("python3.97", newer_lock, False),
        ("python3.97", lambda tree, folder: (folder / ".ready").unlink(), False),
        ("python3.97", lambda tree, folder: (folder / "bin" / "python").unlink(), False),
    ],
    ids=["asked for nothing", "same Python", "another Python", "newer lock", "not finished",
         "no interpreter"],
)  # fmt: skip
def test_an_environment_is_kept_while_lock_and_interpreter_are_those(tree, asked, change, kept):
    folder = prepare(tree, "3.97")
    interpreter(tree / "bin" / "python3.99", "3.99")
    change(tree, folder)
    done = run(tree, "make-environment", folder.name, **({"PYTHON": asked} if asked else {}))
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "bin" / "pytest").exists() == kept
    assert (folder / ".ready").exists()
    version = (asked or "python3.97").removeprefix("python")
    assert f"echo {version}" in (folder / "bin" / "python").read_text()


def test_a_python_that_is_not_here_is_an_error_and_takes_nothing_away(tree):
    folder = prepare(tree, "3.97")
    done = run(tree, "make-environment", folder.name, PYTHON="python3.99")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "error: python3.99 is not here, or older than 3.10\n"
    assert (folder / ".ready").exists()


def test_a_python_older_than_promised_is_refused(tree):
    (tree / "pyproject.toml").write_text(PROJECT.replace("3.10", "3.97"))
    done = run(tree, "make-environment", "new", PYTHON=sys.executable)
    assert done.returncode == 3
    assert done.stderr.endswith(" is not here, or older than 3.97\n")


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("ID=fedora", "dnf install python3"),
        ("ID=ubuntu\nID_LIKE=debian", "apt-get install python3"),
    ],
)
def test_without_a_python_the_systems_own_command_is_named(tree, system, words):
    (tree / "pyproject.toml").write_text(PROJECT.replace("3.10", "3.97"))
    (tree / "os-release").write_text(f"NAME=x\n{system}\n")
    done = run(tree, "make-environment", "new", OS_RELEASE=str(tree / "os-release"))
    assert done.returncode == 3
    assert done.stderr == f"error: Python 3.97 or newer is needed: {words}, or set PYTHON\n"


@pytest.mark.parametrize(
    "place",
    ["bin/python3.99", "pyenv/versions/3.99.1/bin/python", ".pyenv/versions/3.99.1/bin/python",
     ".local/share/uv/python/cpython-3.99.1-linux/bin/python"],
)  # fmt: skip
def test_a_python_is_found_where_it_is_kept(tree, place):
    interpreter(tree / place, "3.99")
    env = {"PYENV_ROOT": f"{tree}/pyenv"} if place.startswith("pyenv") else {}
    done = run(tree, "make-environment", "new", PYTHON="python3.99", **env)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tree / "new" / ".ready").exists()


WHEEL = {
    "tiny.py": "ANSWER = 42\n",
    "tiny-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n",
    "tiny-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.dist-info/RECORD": "",
}
NO_NETWORK = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "UV_NO_CACHE": "1"}


@pytest.fixture
def locked(tree):
    """The same project with the tools of this one, and a lock of one wheel in a folder."""
    (tree / "stackyard").symlink_to(ROOT / "stackyard")
    shutil.rmtree(tree / ".venv")
    (tree / ".venv").symlink_to(sys.prefix)
    wheel = tree / "wheels" / "tiny-1-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in WHEEL.items():
            archive.writestr(name, text)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tree / "requirements.lock").write_text(f"tiny==1 --hash=sha256:{digest}\n")
    return tree


def test_wheels_of_a_folder_that_pip_is_told_of_need_no_network(locked):
    done = run(locked, "make-environment", "new", PIP_FIND_LINKS=f"{locked}/wheels", **NO_NETWORK)
    assert (done.returncode, done.stderr) == (0, "")
    says = [locked / "new" / "bin" / "python", "-c", "import tiny; print(tiny.ANSWER)"]
    assert subprocess.run(says, capture_output=True, text=True, check=True).stdout == "42\n"
    assert (locked / "new" / ".ready").exists()


def test_a_wheel_with_another_hash_is_refused_and_leaves_no_environment(locked):
    lock = locked / "requirements.lock"
    lock.write_text(lock.read_text().replace("sha256:", "sha256:0")[:-2])
    done = run(locked, "make-environment", "new", PIP_FIND_LINKS=f"{locked}/wheels", **NO_NETWORK)
    assert done.returncode != 0
    # uv refused it, and pip as well.
    assert "pip tries what uv could not do" in done.stderr
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (locked / "new").exists()


# An interpreter without an environment: makes one with a pip, which fetches uv.
FIRST = """\
#!/bin/sh
echo "$*" | head -n 1 >> {log}
case "$*" in
  *executable*) echo "$0" ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *" --no-deps -r "*) cat "$9" >> {log} ;;
  *execve*) exit {uv} ;;
esac
"""


@pytest.mark.parametrize("uv", [0, 1], ids=["uv installs", "uv fails, pip installs"])
def test_the_first_environment_fetches_uv_by_its_hash_and_falls_back_on_pip(tree, uv):
    shutil.rmtree(tree / ".venv")
    lock = "tiny==1\nuv==2 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\nvery==3\n"
    (tree / "requirements.lock").write_text(lock)
    program(tree / "bin" / "python3", FIRST.format(log=tree / "log", uv=uv))
    done = run(tree, "make-environment", ".venv")
    assert done.returncode == 0
    log = (tree / "log").read_text()
    assert "uv==2 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n" in log
    assert not {"tiny==1", "very==3"} & set(log.splitlines())
    whole = "-m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock"
    assert (whole in log.splitlines()) == bool(uv)
    assert (tree / ".venv" / ".ready").exists()


def test_an_interrupted_environment_is_taken_away(tree):
    program(
        tree / ".venv" / "bin" / "uv", UV + 'mkdir -p "$6" && touch "$6/half" && kill -INT $PPID\n'
    )
    done = run(tree, "make-environment", "new")
    assert done.returncode == 130
    assert not (tree / "new").exists()


# Tests on other Pythons


def said(version, marks="not repeat", workers=" -n 2 --dist worksteal"):
    command = f"pytest tests/unit tests/golden{workers} -m {marks}"
    return [f"== fast tests on Python {version}", command]


def own(tree, version):
    """The project's own environment, as of another Python."""
    interpreter(tree / ".venv" / "bin" / "python", version)
    program(tree / ".venv" / "bin" / "pytest", PYTEST.format(code=0))


def test_the_oldest_and_the_newest_are_run_where_they_are_here(tree):
    prepare(tree, "3.97")
    prepare(tree, "3.99")
    done = run(tree, "test-pythons")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [*said("3.97"), *said("3.99")]


def test_the_oldest_is_run_first_and_all_others_later(tree):
    prepare(tree, "3.97")
    prepare(tree, "3.99")
    assert run(tree, "test-pythons", "--first").stdout.splitlines() == said("3.97")
    name, command = said("3.99", "not repeat and not once", "")
    rest = run(tree, "test-pythons", "--rest").stdout.splitlines()
    assert rest == [name, f"{command} --first-variant"]
    whole = run(tree, "test-pythons", "--rest", VARIANTS="all").stdout.splitlines()
    assert whole == [name, command]


def test_of_a_test_with_parameters_the_first_that_is_no_repetition_is_run():
    class Item:
        def __init__(self, nodeid, *marks, uses=()):
            self.nodeid, self.get_closest_marker = nodeid, marks.__contains__
            self.fixturenames = uses

    items = [Item("a.py::x[1]", "repeat"), Item("a.py::x[2]"), Item("a.py::y"), Item("a.py::x[3]"),
             Item("b.py::x[1]"), Item("b.py::z[1]", "repeat"),
             Item("b.py::y", uses=("tmp_path", "allow_processes"))]  # fmt: skip
    chosen, others = first_variants(items)
    assert chosen == [items[1], items[2], items[4]]
    assert others == [items[0], items[3], *items[5:]]


def test_the_parts_together_run_what_stands_in_once(tree):
    own(tree, "3.98")
    missing = [f"== Python {one} was not found here: not run" for one in ("3.97", "3.99")]
    assert run(tree, "test-pythons", "--first").stdout.splitlines() == [*missing, *said("3.98")]
    assert run(tree, "test-pythons", "--rest").stdout.splitlines() == missing


def test_a_failure_of_a_later_part_fails(tree):
    prepare(tree, "3.97")
    prepare(tree, "3.99", code=1)
    assert run(tree, "test-pythons", "--first").returncode == 0
    assert run(tree, "test-pythons", "--rest").returncode == 1


def test_the_projects_own_python_stands_in_for_one_that_is_not_here(tree):
    prepare(tree, "3.97")
    own(tree, "3.98")
    done = run(tree, "test-pythons")
    assert done.returncode == 0
    missing = "== Python 3.99 was not found here: not run"
    assert done.stdout.splitlines() == [*said("3.97"), missing, *said("3.98")]


def test_reports_of_each_python_are_kept_where_they_are_wanted(tree):
    prepare(tree, "3.97")
    done = run(tree, "test-pythons", "3.97", RESULTS="/tmp/a b")
    assert done.stdout.splitlines()[1] == f"{said('3.97')[1]} --junitxml /tmp/a b/fast-3.97.xml"


def test_a_failure_on_another_python_fails(tree):
    prepare(tree, "3.97", code=1)
    assert run(tree, "test-pythons").returncode == 1


def test_the_projects_own_python_is_run_once(tree):
    own(tree, "3.97")
    done = run(tree, "test-pythons")
    assert done.returncode == 0
    missing = "== Python 3.99 was not found here: not run"
    assert done.stdout.splitlines() == [*said("3.97"), missing]


def test_a_python_that_was_named_must_be_here(tree):
    prepare(tree, "3.97")
    done = run(tree, "test-pythons", "3.97", "3.99")
    assert done.returncode == 3
    assert "fast tests on Python 3.97" in done.stdout
    assert "python3.99 is not here" in done.stderr
