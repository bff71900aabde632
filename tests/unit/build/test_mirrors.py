"""The caller's package settings: what a build is given, as secrets and never as arguments."""

from pathlib import Path

import pytest

from stackyard.build import mirrors, recipe
from stackyard.build.buildkit import Client, arguments
from stackyard.build.catalog import resolve
from stackyard.build.mirrors import (
    CallerSettings,
    host_distribution,
    make_settings,
    parse_pip_config,
)
from tests.unit import samples

PIP = """\
:env:.timeout='60'
global.cert='/etc/pip/ca.pem'
global.extra-index-url='https://extra.example/one https://extra.example/two'
global.index-url='https://user:hunter2@index.example/simple'
install.trusted-host='index.example'
"""


def made(env=None, pip=None, ca=b"", apt=b""):
    return make_settings(env or {}, pip or {}, ca=ca, apt_sources=apt)


# pip's own settings


def test_pips_settings_are_read_by_their_last_name():
    assert parse_pip_config(PIP) == {
        "timeout": "60",
        "cert": "/etc/pip/ca.pem",
        "extra-index-url": "https://extra.example/one https://extra.example/two",
        "index-url": "https://user:hunter2@index.example/simple",
        "trusted-host": "index.example",
    }


@pytest.mark.parametrize("lines", ["{env}\n{file}", "{file}\n{env}"])
def test_the_environment_wins_over_pips_files(lines):
    text = lines.format(env=":env:.index-url='https://env'", file="global.index-url='https://file'")
    assert parse_pip_config(text) == {"index-url": "https://env"}


def test_what_pip_is_told_for_installing_wins_over_what_it_is_told_in_general():
    # pip reads [global], then the section of its command, then the environment.
    text = "global.index-url='https://general'\ninstall.index-url='https://installing'\n"
    assert parse_pip_config(text) == {"index-url": "https://installing"}


def test_settings_of_other_commands_of_pip_are_left_out():
    assert parse_pip_config("list.format='json'\nwheel.no-deps='true'\n") == {}


def test_values_of_several_lines_are_read():
    assert parse_pip_config("global.find-links='/a\\n/b'\n") == {"find-links": "/a\n/b"}


@pytest.mark.parametrize("text", ["", "WARNING: something else\n", "no equals sign\n", "a=b\n"])
def test_what_is_no_setting_is_passed_over(text):
    assert parse_pip_config(text) == {}


def test_a_value_without_quotes_is_taken_as_it_is():
    assert parse_pip_config("global.index-url=https://index\n") == {"index-url": "https://index"}


# What uv is given on this machine


def test_uv_is_given_pips_settings_as_variables_that_no_process_list_shows():
    pip = {
        **parse_pip_config(PIP),
        "find-links": "/wheels\n/more",
        "proxy": "http://proxy:1",
    }
    assert mirrors.uv_environment({"PATH": "/bin"}, pip) == {
        "PATH": "/bin",
        "UV_DEFAULT_INDEX": "https://user:hunter2@index.example/simple",
        "UV_INDEX": "https://extra.example/one https://extra.example/two",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INSECURE_HOST": "index.example",
        "SSL_CERT_FILE": "/etc/pip/ca.pem",
        "HTTPS_PROXY": "http://proxy:1",
        "HTTP_PROXY": "http://proxy:1",
    }
    assert mirrors.uv_arguments(pip) == []


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_settings_for_uv_itself_win(name):
    own = {name: "https://uv.example", "UV_INDEX": "https://more.example", "SSL_CERT_FILE": "/ca"}
    assert mirrors.uv_environment(own, {**parse_pip_config(PIP), "trusted-host": ""}) == own


@pytest.mark.parametrize(
    ("value", "words"), [("true", ["--no-index"]), ("1", ["--no-index"]), ("false", [])]
)
def test_an_index_that_pip_may_not_ask_is_not_asked_by_uv(value, words):
    assert mirrors.uv_arguments({"no-index": value}) == words


# What a build is given


def test_without_settings_a_build_is_given_nothing():
    assert made() == CallerSettings(secrets={}, wheel_folders=(), proxies={}, notes=())


def test_indexes_are_written_for_uv_and_for_pip():
    found = made(pip=parse_pip_config(PIP), ca=b"CA", apt=b"Types: deb")
    assert found.secrets["uv.toml"].decode() == (
        "[[index]]\n"
        'url = "https://user:hunter2@index.example/simple"\n'
        "default = true\n"
        "[[index]]\n"
        'url = "https://extra.example/one"\n'
        "[[index]]\n"
        'url = "https://extra.example/two"\n'
    )
    assert found.secrets["pip.conf"].decode() == (
        "[global]\n"
        "index-url = https://user:hunter2@index.example/simple\n"
        "extra-index-url = https://extra.example/one https://extra.example/two\n"
        "trusted-host = index.example\n"
    )
    assert (found.secrets["ca.pem"], found.secrets["apt.sources"]) == (b"CA", b"Types: deb")


def test_only_what_is_there_becomes_a_secret():
    assert sorted(made(ca=b"CA").secrets) == ["ca.pem"]
    found = made(env={"UV_INDEX": "https://extra.example"})
    assert sorted(found.secrets) == ["pip.conf", "uv.toml"]
    assert b"default" not in found.secrets["uv.toml"]


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_uvs_own_index_goes_over_pips(name):
    found = made(env={name: "https://uv.example"}, pip={"index-url": "https://pip.example"})
    assert b'url = "https://uv.example"' in found.secrets["uv.toml"]
    assert b"pip.example" not in found.secrets["uv.toml"] + found.secrets["pip.conf"]


@pytest.mark.parametrize("name", ["UV_INDEX", "UV_DEFAULT_INDEX"])
def test_an_index_that_uv_has_a_name_for_is_written_as_its_address(name):
    found = made(env={name: "my-corp.1=https://ann@corp.example/a=b"})
    assert b'url = "https://ann@corp.example/a=b"\n' in found.secrets["uv.toml"]
    assert b"my-corp" not in found.secrets["uv.toml"] + found.secrets["pip.conf"]
    local = made(env={name: "here=file:///srv/index"})
    assert local.notes == ("the local package index file:///srv/index is not carried into builds",)


@pytest.mark.parametrize(
    ("user", "password", "address"),
    [
        ("ann", "p@s/s", "https://ann:p%40s%2Fs@corp.example/simple"),
        ("token", "", "https://token@corp.example/simple"),
        ("", "pw", "https://:pw@corp.example/simple"),
    ],
)
def test_the_user_and_password_that_uv_has_for_a_named_index_are_used(user, password, address):
    env = {
        "UV_INDEX": "my-corp.1=https://old:one@corp.example/simple other=https://other.example/",
        "UV_INDEX_MY_CORP_1_USERNAME": user,
        "UV_INDEX_MY_CORP_1_PASSWORD": password,
    }
    secrets = made(env=env).secrets
    assert f'url = "{address}"\n'.encode() in secrets["uv.toml"]
    line = f"extra-index-url = {address} https://other.example/\n"
    assert line.encode() in secrets["pip.conf"]


def test_local_folders_of_wheels_are_found_whoever_names_them():
    pip = {"find-links": "/wheels file:///more https://links.example relative"}
    found = made(env={"UV_FIND_LINKS": "/uv,/wheels"}, pip=pip)
    assert found.wheel_folders == (Path("/wheels"), Path("/more"), Path("/uv"))


def test_a_local_index_is_said_not_to_be_carried_into_builds():
    found = made(pip={"extra-index-url": "file:///srv/index https://extra.example"})
    assert found.notes == ("the local package index file:///srv/index is not carried into builds",)
    assert b"file:" not in found.secrets["uv.toml"] + found.secrets["pip.conf"]


def test_proxies_are_taken_in_both_spellings():
    env = {"HTTPS_PROXY": "http://proxy:1", "no_proxy": "localhost", "HTTP_PROXY": "", "X": "y"}
    assert made(env=env).proxies == {"HTTPS_PROXY": "http://proxy:1", "no_proxy": "localhost"}


# What never leaves


SECRETS = ("hunter2", "s3cret", "BEGIN CERTIFICATE", "token99")


@pytest.fixture
def guarded():
    """Settings with a secret in every place that may hold one."""
    return made(
        env={
            "HTTPS_PROXY": "http://me:s3cret@proxy.example:3128",
            "UV_EXTRA_INDEX_URL": "https://token99@extra.example",
        },
        pip=parse_pip_config(PIP),
        ca=b"BEGIN CERTIFICATE",
        apt=b"URIs: https://me:s3cret@debian.example",
    )


def test_the_fixture_holds_every_secret(guarded):
    everything = repr(guarded.secrets) + repr(guarded.proxies)
    assert all(secret in everything for secret in SECRETS)


def test_an_address_shows_nothing_of_a_password_with_an_at_sign():
    assert mirrors.bare("https://user:p@ssw0rd@h/x@y") == "https://h/x@y"
    text = "no https://u:a@b@h/x nor http://v:c@d@i/y"
    assert mirrors.bare(text) == "no https://h/x nor http://i/y"


def build_plan():
    image = resolve(samples.definitions(), "toy", "cpu")
    files = dict.fromkeys((*recipe.INSIDE, *image.locks), "")
    return recipe.make_plan(
        image, files, base_image="base:1", content=recipe.BaseContent(digest="sha256:1")
    )


def test_no_secret_is_in_the_arguments_of_a_build(guarded):
    for buildx in (True, False):
        client = Client(path="/usr/bin/docker", buildx=buildx)
        words = arguments(build_plan(), client, "tools:1", guarded, Path("/run/secrets"))
        assert [s for s in SECRETS if s in " ".join(words)] == []
        for name in ("ca.pem", "uv.toml", "pip.conf", "apt.sources"):
            assert f"id={name},src=/run/secrets/{name}" in words


def test_no_secret_is_in_the_notes(guarded):
    assert [s for s in SECRETS if s in " ".join(guarded.notes)] == []


def test_a_plan_knows_nothing_of_the_caller():
    names = set(recipe.BuildPlan.__dataclass_fields__)
    assert names == {
        "stack", "base", "tag", "dockerfile", "base_image", "context", "labels", "recipe", "blobs",
        "packages",
    }  # fmt: skip
    text = repr(build_plan())
    assert [s for s in SECRETS if s in text] == []


# Reading this machine


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="x=y"\n', "debian/bookworm"),
        ('ID="ubuntu"\nVERSION_CODENAME="noble"\n', "ubuntu/noble"),
        ("ID=arch\n", "arch/"),
        ("", "/"),
    ],
)
def test_a_distribution_is_read_from_os_release(text, name):
    assert host_distribution(text) == name


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"])
def test_the_authorities_are_those_the_caller_names(tmp_path, name):
    path = tmp_path / "ca.pem"
    path.write_bytes(b"mine")
    assert mirrors._ca_bundle({name: str(path)}, {}) == b"mine"
    assert mirrors._ca_bundle({}, {"cert": str(path)}) == b"mine"
    assert mirrors._ca_bundle({name: str(tmp_path / "gone")}, {"cert": str(path)}) == b"mine"


def test_package_sources_are_the_file_that_the_caller_names(tmp_path):
    path = tmp_path / "mine.sources"
    path.write_bytes(b"Types: deb")
    env = {"STACKYARD_APT_SOURCES": str(path)}
    assert mirrors._apt_sources(env, "debian/bookworm") == b"Types: deb"


def test_the_hosts_package_sources_are_not_for_another_distribution():
    assert mirrors._apt_sources({}, "ubuntu/of-another-planet") == b""


def test_collecting_asks_pip_once_and_takes_its_word(monkeypatch, tmp_path):
    asked = []

    def run(argv, **_):
        asked.append(argv[1:])
        return mirrors.process.Finished(code=0, output=PIP)

    monkeypatch.setattr(mirrors.process, "run", run)
    found = mirrors.collect({}, distribution="none/such")
    assert asked == [["-m", "pip", "config", "list"]]
    assert b"index.example" in found.secrets["uv.toml"]


@pytest.mark.usefixtures("allow_processes")
@pytest.mark.parametrize("where", ["environment", "file"])
def test_the_settings_of_a_pip_that_is_quiet_are_read(monkeypatch, tmp_path, where):
    path = tmp_path / "pip.conf"
    quiet = "quiet = 2\n" if where == "file" else ""
    path.write_text(f"[global]\nindex-url = https://index.example\n{quiet}")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    monkeypatch.setenv("PIP_QUIET", "1" if where == "environment" else "")
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    assert mirrors.read_pip_config()["index-url"] == "https://index.example"
