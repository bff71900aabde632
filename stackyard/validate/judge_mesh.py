"""Check a mesh: every node logs in to every other, and strangers are refused.

Owns the text that makes a refusal count. Pure: it sees only the answers of logins.
"""

from __future__ import annotations

from stackyard.definitions.spec import Smoke
from stackyard.validate.checks import Check, check, not_run
from stackyard.validate.outcome import Observation

# Set by the shell, sshd or the exec for each process: no part of a node's environment.
_PER_SESSION = {"HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM",
                "USER", "_", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY",
                "STACKYARD_CONTROL"}  # fmt: skip
# Text of a refused login: a refusal for any other reason does not count.
_REFUSALS = {
    "password": "Permission denied (publickey)",
    "foreign_key": "Permission denied (publickey)",
    "other_run": "Permission denied (publickey)",
    "impostor": "Host key verification failed",
    "impostor_by_config": "Host key verification failed",
    "unnamed": "Host key verification failed",
}
_CONTROLS = ("control", "impostor_control")


def mesh(smoke: Smoke, seen: Observation) -> Check:
    """Check that all pairs log in with an exec's environment, and that strangers are refused."""
    expected = {
        "logins": [f"{a}>{b}" for a, b in seen.pairs],
        "same_environment": True,
        "refused": sorted(_REFUSALS),
    }
    if not seen.reach or not seen.refusals:
        if seen.broken:  # the nodes never became a mesh: that is this check's own failure
            return check("mesh", None, expected, [seen.broken])
        return not_run("mesh", expected, seen.broken or "no login was tried")
    wrong, logins = [], []
    for a, b in seen.pairs:
        answer = seen.reach.get(a, {}).get(b, {"code": None, "says": "was not tried", "host": ""})
        if answer["code"] == 0 and answer["host"] == b:
            logins.append(f"{a}>{b}")
        else:
            wrong.append(f"{a} cannot log in to {b}: {answer['says'] or answer['host']}")
    differences = _environment_differences(seen)
    wrong += differences
    refused = []
    for name, says in _REFUSALS.items():
        answer = seen.refusals.get(name, {"code": None, "says": "was not tried"})
        if answer["code"] == 255 and says in str(answer["says"]):
            refused.append(name)
        elif answer["code"] == 0:
            wrong.append(f"{name}: the login was let in")
        else:
            wrong.append(f"{name}: failed, but not with {says!r}: {answer['says']}")
    for name in _CONTROLS:
        if seen.refusals.get(name, {}).get("code") != 0:
            says = seen.refusals.get(name, {}).get("says", "was not tried")
            wrong.append(f"{name} should have worked, so the refusals prove nothing: {says}")
    measured = {
        "logins": logins,
        "same_environment": not differences,
        "refused": sorted(refused),
        "said": {name: answer["says"] for name, answer in sorted(seen.refusals.items())},
    }
    return check("mesh", measured, expected, wrong)


def _environment_differences(seen: Observation) -> list[str]:
    wrong = [
        f"no login from {a} to {b} told its environment"
        for a, b in seen.pairs
        if (a, b) not in seen.sessions
    ]
    for (a, b), session in seen.sessions.items():
        for name, value in {**seen.environment, **seen.own.get(b, {})}.items():
            if name not in _PER_SESSION and session.get(name) != value:
                wrong.append(f"{name} is {session.get(name)!r} in a login from {a} to {b}")
    return wrong
