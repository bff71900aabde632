"""The shell functions of image builds that can be tried without building one."""

import hashlib
import os
import subprocess

import pytest

from stackyard.definitions.project import ROOT
from tests.unit.standins import StandIns

SCRIPT = ROOT / "stackyard" / "inside" / "build.sh"
pytestmark = [pytest.mark.once, pytest.mark.usefixtures("allow_processes")]


@pytest.fixture
def bash(tmp_path):
    """Run a line after sourcing the script; its own home is a folder of the test."""
    text = SCRIPT.read_text().replace("/mnt/", f"{tmp_path}/")
    script = tmp_path / "build.sh"
    script.write_text(text)

    def run(line, stdin="", **env):
        return subprocess.run(
            ["bash", "-c", f". {script}; {line}"],
            env={"PATH": os.environ["PATH"], **env}, input=stdin, capture_output=True, text=True,
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


@pytest.mark.parametrize(
    ("modules", "code", "said"),
    [
        ("json xml.dom", 0, ""),
        ("json no_such_module", 1, "No module named 'no_such_module'"),
        ("json.no_such_part", 1, "No module named 'json.no_such_part'"),
        ("torch.gone setuptools.far.gone", 0, "torch.gone: not in this base, left out"),
        ("torch.wants", 1, "No module named 'what_it_wants'"),
        ("torch", 1, "broken on purpose"),
    ],
)
def test_what_is_warmed_must_import_but_for_parts_of_torch_that_come_and_go(
    bash, tmp_path, modules, code, said
):
    site = tmp_path / "site"
    for package in ("torch", "setuptools"):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text("")
    (site / "torch" / "wants.py").write_text("import what_it_wants")
    if modules == "torch":
        (site / "torch" / "__init__.py").write_text("raise RuntimeError('broken on purpose')")
    done = bash(f"export PYTHONPATH={site}; warm {modules}")
    assert done.returncode == code
    assert said in done.stdout + done.stderr


@pytest.fixture
def installed(tmp_path):
    """A site of two distributions."""
    for name, version in (("torch", "2.11.0+cu130"), ("nvidia_nccl.cu13", "2.28.9")):
        folder = tmp_path / "site" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    return tmp_path / "site"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("torch==2.11.0 nvidia-nccl-cu13", ""),
        ("torch==2 nvidia-nccl-cu13==2.28.9", ""),
        ("torch==2.11.0+cu130", ""),
        ("torch==2.1", "torch==2.1 (found: 2.11.0+cu130)"),
        ("torch==2.11.0+cu126", "torch==2.11.0+cu126 (found: 2.11.0+cu130)"),
        ("torch nosuch triton==3", "nosuch (found: none), triton==3 (found: none)"),
    ],
)
def test_a_base_without_what_it_is_to_provide_fails_the_build(bash, installed, words, wrong):
    done = bash(f"export PYTHONPATH={installed}; assert_provided {words}")
    assert done.returncode == (1 if wrong else 0)
    wanted = f"the base does not hold what it is to provide: {wrong}\n" if wrong else ""
    assert done.stderr == wanted


def test_a_constraint_file_of_the_image_does_not_reach_our_steps(bash):
    assert bash('echo "${PIP_CONSTRAINT-unset}"', PIP_CONSTRAINT="/etc/x").stdout == "unset\n"


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


def test_of_a_lock_those_that_match_are_taken_each_with_its_hashes(bash, tmp_path):
    (tmp_path / "x.lock").write_text(
        "# a comment\nnvidia-nccl-cu13==2 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"
        "torch==2 \\\n    --hash=sha256:3\ntriton==3 \\\n    --hash=sha256:4\n"
    )
    done = bash(f"some_of {tmp_path}/x.lock 'nvidia-*-cu13' triton")
    assert done.stdout == (
        "nvidia-nccl-cu13==2 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"
        "triton==3 \\\n    --hash=sha256:4\n"
    )
    assert bash(f"some_of {tmp_path}/x.lock tri").stdout == ""


def test_an_index_for_torch_is_asked_only_where_no_local_wheels_are(bash, tmp_path):
    words = uv(bash, tmp_path, "install_locked {lock} https://torch.example")
    assert words[words.index("--extra-index-url") + 1] == "https://torch.example"
    (tmp_path / "tools" / "wheels").mkdir()
    words = uv(bash, tmp_path, "install_locked {lock} https://torch.example")
    assert "--extra-index-url" not in words
    assert words[words.index("--find-links") + 1] == str(tmp_path / "tools" / "wheels")


def test_packages_go_to_the_python_that_is_first_on_the_path(bash, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/bin/true")
    call = f"PATH={tmp_path}/bin:$PATH; install_locked {{lock}}; install_built"
    (tmp_path / "wheels" / "x").mkdir(parents=True)
    words = uv(bash, tmp_path, call)
    chosen = [words[n + 1] for n, word in enumerate(words) if word == "--python"]
    assert chosen == [f"{tmp_path}/bin/python3"] * 2


# A build from a bundle


@pytest.fixture
def offline(tmp_path):
    """Tools with a bundle in them."""
    for name in ("wheels", "sdists", "debs"):
        (tmp_path / "tools" / name).mkdir(parents=True)
    (tmp_path / "tools" / "bundle.json").write_text("{}")
    return tmp_path / "tools"


def test_from_a_bundle_no_index_is_asked(bash, tmp_path, offline):
    words = uv(bash, tmp_path, "install_locked {lock} https://torch.example")
    assert {"--offline", "--no-index"} <= set(words)
    assert words[words.index("--find-links") + 1] == str(offline / "wheels")
    assert "--extra-index-url" not in words
    assert "--offline" not in uv(
        bash, tmp_path, f"rm {offline}/bundle.json; install_locked {{lock}}"
    )


def test_from_a_bundle_a_sdist_is_found_by_its_hash(bash, tmp_path, offline):
    (offline / "sdists" / "other-1.tar.gz").write_bytes(b"other")
    (offline / "sdists" / "alpha-1.tar.gz").write_bytes(b"alpha")
    digest = hashlib.sha256(b"alpha").hexdigest()
    (tmp_path / "x.lock").write_text(f"alpha==1 --hash=sha256:{digest}\n")
    done = bash(f"fetch_sdist {tmp_path}/x.lock {tmp_path}/out; ls {tmp_path}/out")
    assert (done.returncode, done.stdout) == (0, "alpha-1.tar.gz\n")


def test_from_a_bundle_without_the_sdist_the_build_fails_and_names_it(bash, tmp_path, offline):
    (offline / "sdists" / "alpha-1.tar.gz").write_bytes(b"tampered")
    (tmp_path / "x.lock").write_text("alpha==1 --hash=sha256:0\n")
    done = bash(f"fetch_sdist {tmp_path}/x.lock {tmp_path}/out")
    assert done.returncode == 1
    assert "no sdist with the hash of alpha==1" in done.stderr


def test_from_a_bundle_a_package_that_is_not_there_is_named(bash, tmp_path, offline):
    (offline / "debs" / "tini_1_amd64.deb").write_text("deb")
    done = bash(f"fetch_packages {tmp_path}/out tini tin")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "the bundle holds no package tin"
    assert (tmp_path / "out" / "tini_1_amd64.deb").exists()


@pytest.fixture
def apt(bash, tmp_path):
    """Run apt as a step does; the words of its command, and the sources that it reads."""
    programs = StandIns(tmp_path)
    programs.recorder("apt-get")

    def run():
        done = bash("apt install tini", PATH=programs.path)
        assert done.returncode == 0, done.stderr
        (call,) = programs.calls()
        sources = {path.name: path.read_text() for path in (tmp_path / "sources").iterdir()}
        return call["argv"], sources

    return run


def option(words, name):
    return [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]


def test_locked_packages_are_the_only_ones_that_apt_sees(apt, tmp_path):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "Packages").write_text("Package: tini\n")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "apt.sources").write_text("Types: deb\n")
    words, sources = apt()
    assert sources == {"locked.list": f"deb [trusted=yes] file:{tmp_path}/packages ./\n"}
    assert option(words, "Dir::Etc::SourceList") == ["/dev/null"]
    assert option(words, "Dir::Etc::SourceParts") == [f"{tmp_path}/sources"]
    # The cache that builds share has lists of other bases.
    assert option(words, "Dir::State::Lists") == [f"{tmp_path}/locked/apt-lists"]
    assert words[-2:] == ["install", "tini"]


def test_without_locked_packages_the_callers_sources_count_and_else_the_bases_own(apt, tmp_path):
    words, sources = apt()
    assert (sources, option(words, "Dir::Etc::SourceList")) == ({}, [])
    (tmp_path / "calls").unlink()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "apt.sources").write_text("Types: deb\n")
    words, sources = apt()
    assert sources == {"caller.sources": "Types: deb\n"}
    assert option(words, "Dir::State::Lists") == [f"{tmp_path}/cache/apt-lists"]


def test_locked_packages_are_unpacked_without_any_source(bash, tmp_path):
    (tmp_path / "packages").mkdir()
    for name in ("Packages", "tini_1_amd64.deb"):
        (tmp_path / "packages" / name).write_text("x")
    done = bash(f"fetch_packages {tmp_path}/out tini tin")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "the locked packages hold no package tin"
    assert (tmp_path / "out" / "tini_1_amd64.deb").exists()


def test_packages_are_unpacked_from_a_bundle_only(bash):
    done = bash("unpack_system tini")
    assert done.returncode == 1
    assert "this base is built from a bundle" in done.stderr


@pytest.fixture
def unpack(bash, tmp_path, offline):
    """Unpack one made-up package over a small root; what the step said, and the root."""
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/there").write_text("the base's")
    (root / "usr/bin").chmod(0o751)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nmany:x:999:999::/:/bin/false\n")
    (offline / "debs" / "alpha_1_amd64.deb").write_text("deb")
    content = tmp_path / "content"
    for name in (
        "bin/there",
        "bin/new",
        "usr/bin/vim.tiny",
        "etc/ssh/ssh_host_rsa_key",
        "usr/share/man/x",
        "usr/share/doc/alpha/copyright",
        "usr/share/doc/alpha/NEWS",
    ):
        (content / name).parent.mkdir(parents=True, exist_ok=True)
        (content / name).write_text("the package's")
    (content / "bin/new").chmod(0o4755)

    def run(loads="true"):
        fakes = (
            f'dpkg-deb() {{ cp -a {content}/. "$3"; }}; ldconfig() {{ :; }};'
            f" assert_loadable() {{ {loads}; }}"
        )
        done = bash(f"{fakes}; unpack_system alpha", UNPACK_ROOT=str(root))
        return done, root

    return run


def test_unpacked_files_come_beside_the_bases_and_replace_none(unpack):
    done, root = unpack()
    assert (done.returncode, done.stderr) == (0, "")
    assert (root / "usr/bin/there").read_text() == "the base's"
    assert (root / "usr/bin").stat().st_mode & 0o777 == 0o751
    assert (root / "bin").is_symlink()
    assert (root / "usr/bin/new").stat().st_mode & 0o7777 == 0o755
    assert (root / "usr/bin/vim").readlink().name == "vim.tiny"


def test_of_unpacked_packages_licences_stay_and_keys_and_manuals_do_not(unpack):
    _, root = unpack()
    assert (root / "usr/share/doc/alpha/copyright").exists()
    assert not (root / "usr/share/doc/alpha/NEWS").exists()
    assert not (root / "usr/share/man").exists()
    assert not (root / "etc/ssh").exists()


def test_sshd_gets_a_user_with_a_free_id_once(unpack):
    _, root = unpack()
    wanted = "sshd:x:998:65534::/run/sshd:/usr/sbin/nologin"
    assert (root / "etc/passwd").read_text().splitlines()[-1] == wanted
    unpack()
    assert (root / "etc/passwd").read_text().count("\nsshd:") == 1


def test_root_has_no_password_and_is_not_locked(unpack):
    _, root = unpack()
    assert (root / "etc/shadow").read_text() == "root:*:20000:0:99999:7:::\n"
    assert (root / "etc/shadow").stat().st_mode & 0o777 == 0o600
    (root / "etc/shadow").write_text("the base's")
    unpack()
    assert (root / "etc/shadow").read_text() == "the base's"


def test_a_program_without_its_library_fails_the_build(bash, tmp_path, unpack):
    assert unpack(loads="false")[0].returncode == 1
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "tool").write_text("")
    fake = "ldd() { printf '\\tlibgone.so.1 => not found\\n'; }"
    done = bash(f"{fake}; cd {tmp_path}; assert_loadable dir")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["dir/tool needs libgone.so.1"]
    assert bash(f"cd {tmp_path}; assert_loadable dir").returncode == 0
    assert bash(f"cd {tmp_path}; assert_loadable nosuch").returncode == 1


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


# settle: one time for all that a step wrote, and nothing that only one build knows


def settled(tmp_path, bash, then=""):
    """A small tree, half of it there before the step began; times after `settle`, by path."""
    root = tmp_path / "root"
    info = root / "lib" / "one-1.dist-info"
    script = f"""
mkdir -p {root}/old {info} {root}/var/cache/ldconfig {root}/mnt
echo old > {root}/old/file; touch -d @1000 {root}/old/file {root}/old
echo 'one-1.dist-info/uv_cache.json,sha256=x,9' > {info}/RECORD; sleep 0.05
: > {tmp_path}/.began; sleep 0.05
echo a > {root}/lib/a.py; ln -s a.py {root}/lib/link; echo '{{}}' > {info}/uv_cache.json
printf 'one.py,,\\none-1.dist-info/uv_cache.json,sha256=x,9\\n' > {info}/RECORD
echo b > {root}/mnt/mounted; echo c > {root}/var/cache/ldconfig/aux-cache; {then}
settle {root}/
"""
    done = bash(script)
    assert done.returncode == 0, done.stderr
    paths = [root / name for name in ("lib", "lib/a.py", "lib/link", "var/cache/ldconfig")]
    return root, {path.name: path.lstat().st_mtime for path in [*paths, info / "RECORD"]}


def test_what_a_step_wrote_has_one_time_and_the_rest_keeps_its_own(tmp_path, bash):
    root, times = settled(tmp_path, bash)
    assert set(times.values()) == {315619200.0}
    assert (root / "old" / "file").stat().st_mtime == 1000
    assert (root / "old").stat().st_mtime == 1000
    assert (root / "mnt" / "mounted").stat().st_mtime > 1e9


def test_what_only_one_build_knows_is_gone_also_from_the_record(tmp_path, bash):
    root, _ = settled(tmp_path, bash)
    info = root / "lib" / "one-1.dist-info"
    assert not (info / "uv_cache.json").exists()
    assert (info / "RECORD").read_text() == "one.py,,\n"
    assert not (root / "var" / "cache" / "ldconfig" / "aux-cache").exists()


def test_a_changed_file_of_before_gets_the_one_time_too(tmp_path, bash):
    root, _ = settled(tmp_path, bash, f"echo more >> {tmp_path}/root/old/file")
    assert (root / "old" / "file").stat().st_mtime == 315619200
    assert (root / "old").stat().st_mtime == 1000


def test_outside_a_build_nothing_is_settled(tmp_path, bash):
    before = tmp_path / "mine"
    done = bash(f"echo mine > {before}; trap -p EXIT")
    assert (done.returncode, done.stdout) == (0, "")
    assert before.stat().st_mtime > 1e9


@pytest.mark.parametrize(
    ("package", "file", "code"),
    [
        ("fairseq", "fairseq-0.12.2-cp311-cp311-linux_x86_64.whl", 0),
        ("megatron-core", "megatron_core-0.16.1-py3-none-any.whl", 0),
        ("A.b_c", "a_b_c-1-py3-none-any.whl", 0),
        ("fairseq", "fairseq2-0.12.2-py3-none-any.whl", 1),
        ("fairseq", "UNKNOWN-0.0.0-py3-none-any.whl", 1),
    ],
)
def test_a_wheel_of_another_package_is_refused(bash, tmp_path, package, file, code):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / file).touch()
    said = bash(f"require_wheel {package} {tmp_path}/out")
    assert said.returncode == code
    assert (f"not of {package}" in said.stderr) == bool(code)


CHECKED = """\
Found 3 incompatibilities
The package `fairseq` requires `hydra-core>=1.0.7,<1.1`, but `1.3.2` is installed
The package `other` requires `odd>=1`, but it's not installed
"""


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("", 0),
        ("The package `fairseq` requires `odd>=1`, but it's not installed\n", 1),
        ("The package `fairscale` requires `torch>=9`, but `2.13` is installed\n", 1),
        ("The package `fairseq` requires `hydra-core-more`, but it's not installed\n", 1),
    ],
)
def test_what_users_own_source_requires_must_be_there(bash, tmp_path, more, code):
    """A fake uv says what uv says; what fixes answer for and other packages do not count."""
    (tmp_path / "tools").mkdir()
    uv = tmp_path / "tools" / "uv"
    uv.write_text(f"#!/bin/sh\ncat >&2 <<'EOT'\n{CHECKED}{more}EOT\nexit 1\n")
    uv.chmod(0o755)
    said = bash("assert_met fairseq,fairscale hydra-core,omegaconf")
    assert said.returncode == code
    assert said.stderr.endswith(more)


def test_where_nothing_replaces_a_requirement_all_count(bash, tmp_path):
    (tmp_path / "tools").mkdir()
    uv = tmp_path / "tools" / "uv"
    uv.write_text(f"#!/bin/sh\ncat >&2 <<'EOT'\n{CHECKED}EOT\nexit 1\n")
    uv.chmod(0o755)
    said = bash("assert_met fairseq ''")
    assert (said.returncode, "hydra-core" in said.stderr) == (1, True)


def test_a_check_that_cannot_be_made_is_no_success(bash, tmp_path):
    (tmp_path / "tools").mkdir()
    uv = tmp_path / "tools" / "uv"
    uv.write_text("#!/bin/sh\necho 'error: no such option' >&2\nexit 2\n")
    uv.chmod(0o755)
    said = bash("assert_met fairseq ''")
    assert (said.returncode, "no such option" in said.stderr) == (1, True)


@pytest.mark.parametrize(
    ("after", "code"), [("alpha==1\nbe_ta.x==3\n", 0), ("alpha==2\nbe_ta.x==3\n", 1)]
)
def test_only_what_is_named_may_be_replaced(bash, tmp_path, after, code):
    (tmp_path / "before").write_text("alpha==1\nBe_ta.x==2\n")
    (tmp_path / "after").write_text(after)
    line = f"inventory() {{ cat {tmp_path}/after; }}; assert_unchanged {tmp_path}/before be-ta-x"
    done = bash(line)
    assert (done.returncode, "alpha==1" in done.stderr) == (code, code == 1)


def test_of_two_distributions_of_one_name_the_first_on_the_path_counts(bash, tmp_path):
    for folder, name, version in (("a", "Al_pha", "2"), ("b", "al-pha", "1"), ("b", "", "3")):
        info = tmp_path / folder / f"{name or 'none'}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n" if name else "")
    path = f"export PYTHONPATH={tmp_path}/a:{tmp_path}/b"
    said = bash(f"{path}; inventory").stdout.splitlines()
    assert [line for line in said if "pha" in line or "None" in line] == ["Al_pha==2"]
    assert bash(f"{path}; assert_provided al.pha==2").returncode == 0
    assert bash(f"{path}; assert_provided al.pha==1").returncode == 1
