"""The shell functions of image builds that can be tried without building one."""

import os
import subprocess

import pytest

from stackyard.project import ROOT

SCRIPT = ROOT / "stackyard" / "inside" / "build.sh"
pytestmark = pytest.mark.usefixtures("allow_processes")


@pytest.fixture
def bash(tmp_path):
    """Run a line after sourcing the script; its own home is a folder of the test."""
    text = SCRIPT.read_text().replace("/mnt/", f"{tmp_path}/")
    script = tmp_path / "build.sh"
    script.write_text(text)

    def run(line, stdin=""):
        return subprocess.run(
            ["bash", "-c", f". {script}; {line}"],
            env={"PATH": os.environ["PATH"]}, input=stdin, capture_output=True, text=True,
            timeout=20, check=False,
        )  # fmt: skip

    return run


def test_plain_lines_are_without_colour_separators_indentation_and_blanks(bash):
    said = bash("plain_lines", "\x1b[31mred\x1b[0m\n%\n\n  \t indented\n% kept\n")
    assert (said.returncode, said.stdout) == (0, "red\nindented\n% kept\n")


def test_plain_lines_are_without_overstriking(bash):
    assert bash("plain_lines", "b\bbo\bol\bld _\bx\n").stdout == "bold x\n"


def test_what_programs_leave_behind_stays_out_of_the_layer(bash, tmp_path):
    said = bash('echo "$HOME $TMPDIR"; mktemp -u').stdout.split()
    assert said[:2] == [f"{tmp_path}/home", f"{tmp_path}/tmp"]
    assert said[2].startswith(f"{tmp_path}/tmp/")


def test_an_error_ends_a_step(bash):
    assert bash("false; echo on").stdout == ""
    assert bash("false | true; echo on").stdout == ""
    assert "unbound variable" in bash('echo "$never_given"').stderr


BEFORE = "alpha==1\nbeta==2\n"


@pytest.mark.parametrize(
    ("after", "code", "said"),
    [
        (BEFORE, 0, ""),
        (BEFORE + "gamma==3\n", 0, ""),
        ("alpha==1\nbeta==3\n", 1, "the base's own packages were replaced or removed: beta==2\n"),
        ("beta==2\n", 1, "the base's own packages were replaced or removed: alpha==1\n"),
    ],
)
def test_a_build_fails_when_a_package_of_the_base_was_replaced(bash, tmp_path, after, code, said):
    (tmp_path / "before").write_text(BEFORE)
    (tmp_path / "after").write_text(after)
    line = f"inventory() {{ cat {tmp_path}/after; }}; assert_unchanged {tmp_path}/before"
    done = bash(line)
    assert (done.returncode, done.stderr) == (code, said)


def test_the_modules_to_warm_are_imported_together(bash):
    done = bash("python3() { printf '%s|' \"$@\"; }; warm json xml.dom")
    assert done.stdout == "-W|ignore|-c|import json, xml.dom|"


def uv(bash, tmp_path, call, lock="alpha==1 --hash=sha256:0\n"):
    """The arguments that a function gives to uv."""
    (tmp_path / "tools").mkdir(exist_ok=True)
    program = tmp_path / "tools" / "uv"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (tmp_path / "x.lock").write_text(lock)
    done = bash(call.format(lock=tmp_path / "x.lock"))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_locked_packages_are_wheels_with_checked_hashes_and_nothing_else(bash, tmp_path):
    words = uv(bash, tmp_path, "install_locked {lock}")
    assert words[:2] == ["pip", "install"]
    assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(words)
    assert "--extra-index-url" not in words
    assert words[-2:] == ["-r", str(tmp_path / "x.lock")]


def test_an_index_for_torch_is_asked_only_where_no_local_wheels_are(bash, tmp_path):
    words = uv(bash, tmp_path, "install_locked {lock} https://torch.example")
    assert words[words.index("--extra-index-url") + 1] == "https://torch.example"
    (tmp_path / "tools" / "wheels").mkdir()
    words = uv(bash, tmp_path, "install_locked {lock} https://torch.example")
    assert "--extra-index-url" not in words
    assert words[words.index("--find-links") + 1] == str(tmp_path / "tools" / "wheels")


def test_a_lock_without_entries_installs_nothing(bash, tmp_path):
    assert uv(bash, tmp_path, "install_locked {lock}", lock="# nothing\n") == []


@pytest.mark.parametrize("given", [True, False])
def test_the_callers_settings_are_used_where_given(bash, tmp_path, given):
    (tmp_path / "secrets").mkdir()
    for name in ("ca.pem", "uv.toml", "pip.conf"):
        (tmp_path / "secrets" / name).write_text("x" if given else "")
    said = bash('echo "${SSL_CERT_FILE:-} ${UV_CONFIG_FILE:-} ${PIP_CONFIG_FILE:-}"').stdout
    assert [word.rpartition("/")[2] for word in said.split()] == (
        ["ca.pem", "uv.toml", "pip.conf"] if given else []
    )
