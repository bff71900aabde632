"""Find the login for a registry that `docker login` stored.

Owns reading docker's own store (its configuration file and credential helpers). It must not keep or
print a login, nor pass it on except as the return value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import docker.auth
import docker.errors

from stackyard.system.errors import RegistryError


@dataclass(frozen=True, kw_only=True)
class Login:
    """Hold a user's name and password at a registry, or a `token` that replaces both."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


def find_login(host: str) -> Login | None:
    """Return the login for a registry; None where nobody has logged in.

    Raises:
        RegistryError: a credential helper failed.
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
