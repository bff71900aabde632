"""Collect the caller's package settings for builds, as secrets and mounts, never in a layer.

Owns the translation of pip's, uv's and apt's own settings. Only `collect` reads environment and
files; the rest is pure. It must not write any file.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from stackyard.system import process

# Later sections take precedence, as in pip itself.
_PIP_SECTIONS = ("global", "install", ":env:")
_TRUE = ("1", "on", "t", "true", "y", "yes")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "FTP_PROXY", "ALL_PROXY")
_CA = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_CA_DEFAULTS = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


@dataclass(frozen=True, kw_only=True)
class CallerSettings:
    """Hold the settings that a build gets besides its plan.

    Attributes:
        secrets: contents by secret id (`ca.pem`, `uv.toml`, `pip.conf`, `apt.sources`).
        wheel_folders: local folders that may hold wheels that locks name.
        proxies: proxy variables, passed as build arguments that no image history records.
        notes: messages about settings that builds cannot use.
    """

    secrets: Mapping[str, bytes]
    wheel_folders: tuple[Path, ...]
    proxies: Mapping[str, str]
    notes: tuple[str, ...] = field(default=())


def parse_pip_config(text: str) -> dict[str, str]:
    """Parse the output of `pip config list`: values by option; the environment's win."""
    by_section: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        match = re.match(r"^([^.=\s]+)\.([^=]+)=(.*)$", line)
        if not match:
            continue
        section, name, quoted = match.groups()
        try:
            value = str(ast.literal_eval(quoted))
        except (ValueError, SyntaxError):
            value = quoted
        name = name.strip().strip(".").strip("'")
        if section in _PIP_SECTIONS:
            by_section.setdefault(section, {})[name] = value
    return {n: v for section in _PIP_SECTIONS for n, v in by_section.get(section, {}).items()}


def make_settings(
    env: Mapping[str, str], pip: Mapping[str, str], *, ca: bytes, apt_sources: bytes
) -> CallerSettings:
    """Turn pip's, uv's and apt's settings into the settings of a build."""
    index = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or pip.get("index-url", "")
    extra = f"{env.get('UV_INDEX', '')} {env.get('UV_EXTRA_INDEX_URL', '')}"
    index = _address(index, env)
    extras = [_address(url, env) for url in extra.split()]
    extras += pip.get("extra-index-url", "").split()
    links = [*pip.get("find-links", "").split(), *re.split(r"[\s,]+", env.get("UV_FIND_LINKS", ""))]
    folders = [Path(link.removeprefix("file://")) for link in links if (link and "://" not in link)
               or link.startswith("file://")]  # fmt: skip
    local = [url for url in (index, *extras) if url.startswith("file:")]
    index = "" if index in local else index
    remote = [url for url in extras if url not in local]
    served = [link for link in links if "://" in link and not link.startswith("file://")]
    notes = (
        *(f"the local package index {url} is not carried into builds" for url in local),
        *(f"the find-links address {bare(url)} is not carried into builds" for url in served),
    )
    secrets = {"ca.pem": ca, "apt.sources": apt_sources}
    if index or remote:
        secrets["uv.toml"] = _uv_toml(index, remote).encode()
        secrets["pip.conf"] = _pip_conf(index, remote, pip.get("trusted-host", "")).encode()
    proxies = {
        name: value
        for wanted in _PROXIES
        for name in (wanted, wanted.lower())
        if (value := env.get(name))
    }
    return CallerSettings(
        secrets={name: data for name, data in secrets.items() if data},
        wheel_folders=tuple(dict.fromkeys(folder for folder in folders if folder.is_absolute())),
        proxies=proxies,
        notes=notes,
    )


def uv_arguments(pip: Mapping[str, str]) -> list[str]:
    """Return the arguments for those of pip's settings that no variable of uv stands for."""
    return ["--no-index"] if pip.get("no-index", "").lower() in _TRUE else []


def uv_environment(env: Mapping[str, str], pip: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which uv uses pip's settings; those for uv itself win."""
    links = pip.get("find-links", "").split()
    own_index = "UV_INDEX_URL" in env or "UV_DEFAULT_INDEX" in env
    settings = {
        "UV_DEFAULT_INDEX": "" if own_index else pip.get("index-url", ""),
        "UV_INDEX": " ".join(pip.get("extra-index-url", "").split()),
        "UV_FIND_LINKS": ",".join(links),
        "UV_INSECURE_HOST": " ".join(pip.get("trusted-host", "").split()),
        "SSL_CERT_FILE": pip.get("cert", ""),
        "HTTPS_PROXY": pip.get("proxy", ""),
        "HTTP_PROXY": pip.get("proxy", ""),
    }
    return {**{name: value for name, value in settings.items() if value}, **env}


def bare(url: str) -> str:
    """Return a URL without user and password."""
    return re.sub(r"//[^/]*@", "//", url)


def _address(index: str, env: Mapping[str, str]) -> str:
    """Return the URL of uv's `NAME=URL`, with the user and password that uv has for the name."""
    named = re.match(r"([A-Za-z0-9._-]+)=(?=[A-Za-z]+://)", index)
    if not named:
        return index
    url = index[named.end() :]
    variable = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", named[1].upper())
    user, password = (env.get(f"{variable}_{part}", "") for part in ("USERNAME", "PASSWORD"))
    if url.startswith("file:") or not (user or password):
        return url
    scheme, _, rest = bare(url).partition("://")
    who = f"{quote(user, safe='')}:{quote(password, safe='')}".rstrip(":")
    return f"{scheme}://{who}@{rest}"


def _uv_toml(index: str, extras: Sequence[str]) -> str:
    lines = []
    if index:
        lines += ["[[index]]", f'url = "{index}"', "default = true"]
    for url in extras:
        lines += ["[[index]]", f'url = "{url}"']
    return "\n".join(lines) + "\n"


def _pip_conf(index: str, extras: Sequence[str], trusted: str) -> str:
    lines = ["[global]"]
    if index:
        lines.append(f"index-url = {index}")
    if extras:
        lines.append("extra-index-url = " + " ".join(extras))
    if trusted:
        lines.append(f"trusted-host = {trusted}")
    return "\n".join(lines) + "\n"


def _ca_bundle(env: Mapping[str, str], pip: Mapping[str, str]) -> bytes:
    named = [*(env.get(name, "") for name in _CA), pip.get("cert", ""), *_CA_DEFAULTS]
    for path in named:
        if path and Path(path).is_file():
            return Path(path).read_bytes()
    return b""


def host_distribution(os_release: str) -> str:
    """Return the distribution as `debian/bookworm`, from the text of /etc/os-release."""
    values = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    name = values.get("ID", "").strip('"')
    return f"{name}/{values.get('VERSION_CODENAME', '').strip(chr(34))}"


def _apt_sources(env: Mapping[str, str], distribution: str) -> bytes:
    """Return apt sources: the named file, or the host's own if it runs `distribution`."""
    if env.get("STACKYARD_APT_SOURCES"):
        return Path(env["STACKYARD_APT_SOURCES"]).read_bytes()
    release = Path("/etc/os-release")
    if not release.is_file() or host_distribution(release.read_text()) != distribution:
        return b""
    files = sorted(Path("/etc/apt/sources.list.d").glob("*.sources"))
    vendor = distribution.split("/", maxsplit=1)[0]
    return b"\n".join(f.read_bytes() for f in files if f.stem in (vendor, "official"))


def read_pip_config() -> dict[str, str]:
    """Read pip's settings of this machine: values by option."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    # A quiet pip prints no settings; its environment wins over `quiet` in its files.
    done = process.run(command, env={"PIP_QUIET": "0"}, timeout=60, check=False)
    return parse_pip_config(done.output)


def collect(env: Mapping[str, str], *, distribution: str) -> CallerSettings:
    """Read the caller's settings from this machine, for a base of `distribution`."""
    pip = read_pip_config()
    return make_settings(
        env, pip, ca=_ca_bundle(env, pip), apt_sources=_apt_sources(env, distribution)
    )
