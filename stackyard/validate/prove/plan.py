"""List the proofs of one image, and what each leaves out.

Owns how a fix is left out: changed files go back to what was installed and every other fix is
applied again; a variable is removed from the environment; a wheel is built, or other versions are
installed, as they would be without it. It must not start anything: `validate.prove.play` does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stackyard.build import dockerfile
from stackyard.build.catalog import ResolvedImage, choose
from stackyard.definitions import compat
from stackyard.definitions.spec import Definitions, Fix, Limit, Witness
from stackyard.system import template
from stackyard.system.errors import UsageError

RIGHT, WRONG = "right", "wrong"
BACK_LOCK = "back.lock"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Describe a proof: a witness fails without the fix (or the wrong way), and passes with it.

    Attributes:
        id: the fix's or the limit's; with `#N`, only replacement N of the fix is left out.
        kind: `fix` or `limit`.
        with_: the command that must pass.
        without: the command that must fail with the symptom.
        fixes: the fixes that are applied for `without`, as `apply_fixes.py` reads them; None where
            the image stays as it is.
        unset: variables that are removed from the environment.
        wheel: a package that is built without the fix.
        back: lines of a lock; their wheels are installed.
    """

    id: str
    kind: str
    witness: Witness
    with_: tuple[str, ...]
    without: tuple[str, ...]
    fixes: str | None = None
    unset: tuple[str, ...] = ()
    wheel: str = ""
    back: tuple[str, ...] = ()


def proofs(
    image: ResolvedImage, limits: Iterable[Limit], only: str = ""
) -> tuple[tuple[Proof, ...], dict[str, str]]:
    """Return the proofs of one image, and why declared fixes and limits have none here.

    Args:
        only: the one fix or limit that is asked for; empty for all.
    """
    elsewhere = dict(image.left_out)
    found: list[Proof] = []
    for fix in image.fixes:
        found += _of_fix(image, fix)
    for resolved in image.wheels:
        found += [_of_wheel(resolved.wheel.package, fix) for fix in resolved.fixes]
    versions = {n: s.value for n, s in {**image.provided, **image.packages}.items()}
    for limit in limits:
        if image.stack.name not in limit.stacks:
            continue
        base = image.base
        reason = compat.why_not(limit, versions, python=base.python, device=base.device)
        if reason:
            elsewhere[limit.id] = reason
        else:
            found.append(_of_limit(limit))
    if only:
        found = [proof for proof in found if proof.id.partition("#")[0] == only]
        elsewhere = {name: why for name, why in elsewhere.items() if name == only}
    return tuple(found), elsewhere


def _of_fix(image: ResolvedImage, fix: Fix) -> list[Proof]:
    def without(gone: Fix, kept: Fix | None, number: str, witness: Witness) -> Proof:
        left = [kept if one is gone else one for one in image.fixes]
        return Proof(
            id=fix.id + number,
            kind="fix",
            witness=witness,
            with_=witness.command,
            without=witness.command,
            fixes=dockerfile.fixes_json([one for one in left if one], "installed"),
            unset=() if kept else tuple(gone.remedy.env),
            back=() if kept else gone.remedy.without,
        )

    found = [without(fix, None, "", fix.witness)]
    for place in fix.places:
        rules = fix.remedy.replace
        rest = rules[: place.replacement - 1] + rules[place.replacement :]
        kept = dataclasses.replace(fix, remedy=dataclasses.replace(fix.remedy, replace=rest))
        found.append(without(fix, kept, f"#{place.replacement}", place.witness))
    return found


def _of_wheel(package: str, fix: Fix) -> Proof:
    command = fix.witness.command
    return Proof(
        id=fix.id, kind="fix", witness=fix.witness, with_=command, without=command, wheel=package
    )


def _of_limit(limit: Limit) -> Proof:
    command = limit.witness.command
    return Proof(
        id=limit.id,
        kind="limit",
        witness=limit.witness,
        with_=(*command, RIGHT),
        without=(*command, WRONG),
    )


def touched(image: ResolvedImage) -> tuple[str, ...]:
    """Return every installed file that a fix changes, below site-packages."""
    return tuple(sorted({rule.file for fix in image.fixes for rule in fix.remedy.replace}))


def without_fix(image: ResolvedImage, fix_id: str) -> ResolvedImage:
    """Return the image with its wheels built without one fix."""
    wheels = tuple(
        dataclasses.replace(
            wheel,
            fixes=tuple(fix for fix in wheel.fixes if fix.id != fix_id),
            env={
                name: value
                for name, value in wheel.env.items()
                if name in wheel.wheel.env
                or any(name in fix.remedy.build_env for fix in wheel.fixes if fix.id != fix_id)
            },
        )
        for wheel in image.wheels
    )
    return dataclasses.replace(image, wheels=wheels)


def files_stages(image: ResolvedImage) -> str:
    """Return stages after which `files/` holds every file that a fix changes, as installed."""
    return _stages({"files": touched(image)})


def wheel_stages(package: str) -> str:
    """Return stages after which `back/` holds a package that is built here, as installed."""
    return _stages({"wheel": package})


def back_stages() -> str:
    """Return stages after which `back/` holds the packages of `BACK_LOCK`, as installed."""
    return _stages({"back": BACK_LOCK})


def _stages(chosen: Mapping[str, object]) -> str:
    values = {"files": (), "wheel": "", "back": "", "secrets": dockerfile.SECRETS}
    return template.render("Prove.j2", {**values, **chosen})


def require_known(definitions: Definitions, only: str) -> None:
    """Require that a fix or limit of this name exists; an empty name stands for all.

    Raises:
        UsageError: none does; names the nearest one.
    """
    if only:
        choose("fix or limit", only, {**definitions.fixes, **definitions.limits})


def require_used(definitions: Definitions, images: Iterable[ResolvedImage]) -> None:
    """Require that every fix and limit still applies to some image that has a lock.

    Args:
        images: every stack on every base.

    Raises:
        UsageError: one applies nowhere any more; it would never be proven again.
    """
    used: set[str] = set()
    reasons: dict[str, set[str]] = {}
    for image in images:
        if not image.locked:
            continue
        found, elsewhere = proofs(image, definitions.limits.values())
        used |= {proof.id.partition("#")[0] for proof in found}
        for name, reason in elsewhere.items():
            reasons.setdefault(name, set()).add(
                f"{image.stack.name} on {image.base.name}: {reason}"
            )
    for folder, named in (("fixes", definitions.fixes), ("limits", definitions.limits)):
        unused = sorted(set(named) - used)
        if unused:
            name = unused[0]
            raise UsageError(
                f"images/{folder}/{name}.yml applies to no stack on any base",
                why="; ".join(sorted(reasons.get(name, ()))) or "no stack and no wheel names it",
                hint="correct its applies_to, or remove it if it is not needed any more",
            )


def digest(definition: Fix | Limit, image: ResolvedImage) -> str:
    """Return the digest of what a proof depends on: remedy, witnesses, versions, but no prose."""

    def shown(witness: Witness) -> dict[str, object]:
        return {"command": witness.command, "fails_with": witness.fails_with}

    told: dict[str, object] = {
        "witness": shown(definition.witness),
        "versions": versions_of(definition, image),
    }
    if isinstance(definition, Fix):
        told["remedy"] = dataclasses.asdict(definition.remedy)
        told["places"] = [(place.replacement, shown(place.witness)) for place in definition.places]
    text = json.dumps(told, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()


def versions_of(definition: Fix | Limit, image: ResolvedImage) -> dict[str, str]:
    """Return the versions, in an image, of the packages that a definition names, and Python's."""
    have = {n: s.value for n, s in {**image.provided, **image.packages}.items()}
    named = {compat.canonical(name) for name in (definition.package, *definition.versions)}
    found = {name: have[name] for name in sorted(named) if name in have}
    return {**found, "python": image.base.python}
