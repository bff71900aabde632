"""Who we are to a registry: what `docker login` keeps.

Owns asking docker's own store (its configuration file and credential helpers). It must not keep,
print or pass on what it finds by any other way than the return value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import docker.auth
import docker.errors

from stackyard.system.errors import RegistryError


@dataclass(frozen=True, kw_only=True)
class Login:
    """A user's name and secret at a registry; `token` stands for both where it is given."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def find_login(host: str) -> Login | None:
    """The login at a registry; None where nobody has logged in.

    Raises:
        RegistryError: a credential helper does not work.
    """
    try:
        found = docker.auth.load_config().resolve_authconfig(host)
    except docker.errors.DockerException as error:
        raise RegistryError(
            f"docker's store of credentials cannot be asked for {host}",
            why=str(error),
            hint=f"docker login {host} shows the whole story",
        ) from error
    if not found:
        return None
    names = {key.lower(): str(value or "") for key, value in found.items()}
    return Login(
        user=names.get("username", ""),
        password=names.get("password", ""),
        token=names.get("identitytoken", ""),
    )
