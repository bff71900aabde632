"""The programs a node needs are there and start; what only a build needs is not."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "nvcc", "ld", "as", "make", "cmake")


@pytest.mark.parametrize(
    ("command", "begin"),
    [
        ("/usr/sbin/sshd -V", "OpenSSH_"),
        ("ssh -V", "OpenSSH_"),
        ("pdsh -V", "pdsh-"),
        ("ps --version", "ps from procps-ng"),
        ("pkill --version", "pkill from procps-ng"),
        ("ip -V", "ip utility"),
        ("rsync --version", "rsync  version"),
        ("tini --version", "tini version"),
        ("less --version", "less "),
        ("vim --version", "VIM - Vi IMproved"),
        ("python3 --version", "Python "),
    ],
    ids=lambda value: value.split()[0].rpartition("/")[2],
)
def test_starts(said, command, begin):
    assert said(f"{command} 2>&1").startswith(begin)


def test_python_is_the_bases(said, built):
    assert said("python3 --version").startswith(f"Python {built.image.base.python}.")


def test_pdsh_would_use_ssh(said):
    assert "ssh" in said("pdsh -q -w nobody | grep -A1 -i 'rcmd type'")


def test_every_system_package_is_installed(host, built):
    image = built.image
    names = [*image.common.system, *image.stack.system, *image.base.bootstrap.packages]
    missing = [name for name in names if not host.package(name).is_installed]
    assert missing == []


@pytest.mark.parametrize("name", COMPILERS)
def test_no_compiler_is_left(host, built, name):
    found = host.run(f"command -v {name}")
    assert (found.rc != 0) or built.image.stack.compiler_at_run_time, found.stdout


def test_no_build_package_is_left(host, built):
    stays = built.image.stack.compiler_at_run_time
    names = [*built.image.common.build_system, "cmake", "ninja-build", "git", "curl", "wget"]
    left = [name for name in names if host.package(name).is_installed]
    assert left == [] or stays


@pytest.mark.parametrize("module", ["pip", "uv", "ensurepip", "virtualenv"])
def test_no_installer_of_python_packages_is_left(said, host, module):
    code = f"import importlib.util as u; print(u.find_spec('{module}'))"
    assert said(f'python3 -c "{code}"') == "None"
    assert host.run(f"command -v {module}").rc != 0


def test_a_tool_called_ninja_is_a_locked_package(said, host, built):
    """DeepSpeed asks for PyPI's ninja; nothing calls it in an image without a compiler."""
    found = host.run("command -v ninja").stdout.strip()
    assert found == ("/usr/local/bin/ninja" if "ninja" in built.image.packages else "")


def test_text_packages_brought_their_text_only(host, built):
    left = [n for n in built.image.common.text_packages if host.package(n).is_installed]
    assert left == []
