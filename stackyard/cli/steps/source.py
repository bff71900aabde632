"""Run `invoke build --source`, from its arguments to the output.

Owns the meaning of these arguments. `build.source.reading` reads trees, `build.source.fit` checks
them, `build.source.fork` changes the image's plan.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stackyard.build import catalog
from stackyard.build.builder import Builder, Built
from stackyard.build.catalog import ResolvedImage
from stackyard.build.choice import decide
from stackyard.build.source import fit, fork, reading
from stackyard.build.source import tree as source_tree
from stackyard.build.source.fork import Fork
from stackyard.build.source.naming import Source, beginnings, parse_asked
from stackyard.build.source.tree import Tree
from stackyard.cli.answer import Answer
from stackyard.cli.console import Terminal
from stackyard.cli.options.images import BuildRequest
from stackyard.cli.steps.build import base_of_smoke
from stackyard.definitions.project import INSIDE, Project, load_project
from stackyard.definitions.spec import Fix
from stackyard.system import cleanup, process
from stackyard.system.engine import Engine
from stackyard.system.errors import BuildError, UsageError, shown

_APPLY = INSIDE / "apply_fixes.py"


def typed_again(given: BuildRequest) -> str:
    """Return the command to type again, without its tag."""
    words = [f"--source {shown(text)}" for text in given.source]
    words += [f"--despite {name}" for name in given.despite]
    based = [f"--base {given.base}"] if given.base else []
    return " ".join(["invoke build", given.stack, *based, *words])


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Hold sources that were read and checked.

    Attributes:
        repaired: fixes that each tree contains already, by package.
    """

    fork: Fork
    image: ResolvedImage
    repaired: Mapping[str, Sequence[str]] = field(default_factory=dict)


def build(terminal: Terminal, given: BuildRequest) -> Answer:
    """Run `invoke build STACK --source [PACKAGE=]PATH_OR_GIT[@REV]`."""
    project = load_project()
    require_one(given)
    chosen = decide(project, given.stack, given.base or base_of_smoke())
    name, base = chosen.stack, chosen.base.name
    prepared = prepare(project, replace(given, stack=name, base=base), terminal)
    with Engine() as held:
        bundle = Path(given.offline) if given.offline else None
        builder = Builder(project, held, terminal.say, bundle, fresh=given.no_cache)
        try:
            built = builder.build(name, base, again=given.force, fork=prepared.fork)
        except BuildError as error:
            raise explained(error, prepared, given) from error
    _show(built, prepared, terminal)
    return {"images": [_row(built, prepared)]}, 0


def require_one(given: BuildRequest) -> None:
    """Check that sources come with one stack, and that their options come with a source.

    Raises:
        UsageError: they do not.
    """
    if not given.source:
        flag = "--tag" if given.tag else "--despite"
        raise UsageError(f"{flag} belongs to a build of your own source",
                         hint=f"invoke build {given.stack} --source PATH_OR_GIT[@REV] {flag} ..."
                         )  # fmt: skip
    if given.stack == "all":
        raise UsageError("--source: say which stack it is for",
                         hint="invoke build STACK --source PATH_OR_GIT[@REV]")  # fmt: skip


def prepare(project: Project, given: BuildRequest, terminal: Terminal) -> Prepared:
    """Read the sources and check that they fit, as far as possible before a build.

    Raises:
        UsageError: a source is missing, is of another package, or does not fit.
    """
    known = fork.buildable(project.definitions, given.stack)
    image = catalog.resolve(project.definitions, given.stack, given.base)
    sources: dict[str, Source] = {}
    trees: dict[str, Tree] = {}
    main = next(iter(image.stack.packages))
    for text in given.source:
        there = {part for part in beginnings(text) if Path(part).expanduser().is_dir()}
        asked = parse_asked(text, main, known, there)
        if asked.package in sources:
            raise UsageError(f"--source: {asked.package} is named twice")
        if not asked.remote:
            asked = replace(asked, location=str(Path(asked.location).expanduser()))
        version = project.definitions.wheels[asked.package].version
        source, tree = reading.read(asked, version, lambda text: terminal.say(given.stack, text))
        sources[asked.package], trees[asked.package] = source, tree
    made = Fork(
        sources=tuple(sources.values()),
        definitions=project.definitions,
        archives={name: source_tree.pack(tree) for name, tree in trees.items()},
        despite=tuple(dict.fromkeys(given.despite)),
        tag=fork.require_tag(
            given.tag, given.stack, given.base, fork.own_names(project.definitions)
        ),
    )
    image = made.image(image)
    repaired = {}
    for name, tree in trees.items():
        fit.require_met(sources[name], tree, image)
        repaired[name] = check_fixes(all_fixes(image), name, tree, typed_again(given))
    return Prepared(fork=made, image=image, repaired=repaired)


def all_fixes(image: ResolvedImage) -> list[Fix]:
    """Return every fix that a build of an image applies."""
    return [*image.fixes, *(fix for wheel in image.wheels for fix in wheel.fixes)]


def check_fixes(fixes: Sequence[Fix], package: str, tree: Tree, typed: str) -> list[str]:
    """Check that a package's fixes fit its tree; return those that it contains already.

    Raises:
        UsageError: lists every fix that does not fit.
    """
    rules, _ = fit.fix_rules(fixes, package, tree)
    with cleanup.folder("fit") as folder:
        root, file = folder / "tree", folder / "fixes.json"
        root.mkdir()
        file.write_text(rules, encoding="utf-8")
        for path in fit.files_of(rules):
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            if path in tree and not tree[path].link:
                place.write_bytes(tree[path].data)
        words = [sys.executable, str(_APPLY), str(file), "--stage", "installed"]
        done = process.run([*words, "--root", str(root)], check=False)
    wrong = fit.conflict(done.output, fixes, f"your {package}", typed)
    if wrong is not None:
        raise wrong
    if done.code:
        raise UsageError(f"the fixes of {package} cannot be tried on your tree", why=done.output)
    return fit.there_already(fit.answers(done.output))


def explained(error: BuildError, prepared: Prepared, given: BuildRequest) -> Exception:
    """Convert a build's failure to an error that names the user's remedy in the tree."""
    package = prepared.fork.sources[0].package
    wrong = fit.conflict(
        error.why, all_fixes(prepared.image), f"your {package}", typed_again(given)
    )
    if wrong is not None:
        return wrong
    lacking = fit.missing(error.why)
    if lacking:
        return fit.unmet(package, lacking, prepared.image)
    return error


def _show(built: Built, prepared: Prepared, terminal: Terminal) -> None:
    name = built.image.stack.name
    made = f"built in {built.seconds:.1f} s" if built.made else "is current"
    terminal.done(name, f"{built.tag} {made} ({built.info.size / 1e9:.2f} GB)")
    for source in prepared.fork.sources:
        terminal.text(f"{source.package}: {source.says}; {source.files} files")
        for module in source.submodules:
            terminal.text(f"{source.package}: submodule {module}")
        there = prepared.repaired.get(source.package, ())
        if there:
            terminal.text(f"{source.package}: your tree has these repairs already: "
                          + ", ".join(there))  # fmt: skip
    if prepared.fork.despite:
        terminal.text(f"left out: {', '.join(prepared.fork.despite)}")
    terminal.text(f"to prove it: invoke smoke {name} --image {built.tag}"
                  + (" --gpus 0" if built.image.base.device == "cpu" else " --gpus 2"))  # fmt: skip


def _row(built: Built, prepared: Prepared) -> dict[str, Any]:
    return {
        "stack": built.image.stack.name,
        "base": built.image.base.name,
        "image": built.info.id,
        "tags": [built.tag],
        "made": built.made,
        "seconds": round(built.seconds, 2),
        "size_bytes": built.info.size,
        "sources": [asdict(source) for source in prepared.fork.sources],
        "despite": list(prepared.fork.despite),
        "repaired_there": {name: list(there) for name, there in prepared.repaired.items()},
    }
