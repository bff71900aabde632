"""`invoke build --source`, and images named by `--image`: from what was typed to what is shown.

Owns what these arguments mean. Trees are `build.source.reading`'s, whether they fit
`build.source.fit`'s, what an image becomes `build.source.fork`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stackyard.build import catalog
from stackyard.build.builder import Builder, Built
from stackyard.build.catalog import ResolvedImage, choose
from stackyard.build.source import fit, fork, reading
from stackyard.build.source import tree as source_tree
from stackyard.build.source.fork import Fork
from stackyard.build.source.naming import Source, beginnings, parse_asked, require_labels
from stackyard.build.source.tree import Tree
from stackyard.cli.console import Terminal
from stackyard.cli.main import run
from stackyard.definitions.project import Project, load_project
from stackyard.definitions.spec import Fix
from stackyard.system import cleanup, process
from stackyard.system.engine import Engine
from stackyard.system.errors import BuildError, UsageError, shown

_APPLY = Path(__file__).resolve().parent.parent / "inside" / "apply_fixes.py"


@dataclass(frozen=True, kw_only=True)
class SourceArguments:
    """What `invoke build STACK --source ...` was given."""

    stack: str
    base: str = ""
    sources: tuple[str, ...] = ()
    despite: tuple[str, ...] = ()
    tag: str = ""
    again: bool = False
    fresh: bool = False
    offline: str = ""

    @property
    def typed(self) -> str:
        """The command as it could be typed again, without its tag."""
        words = [f"--source {shown(text)}" for text in self.sources]
        words += [f"--despite {name}" for name in self.despite]
        based = [f"--base {self.base}"] if self.base else []
        return " ".join(["invoke build", self.stack, *based, *words])


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Sources that were read and looked at.

    Attributes:
        repaired: fixes that each tree has already, by package.
    """

    fork: Fork
    image: ResolvedImage
    repaired: Mapping[str, Sequence[str]] = field(default_factory=dict)


def build(given: SourceArguments, *, as_json: bool) -> int:
    """`invoke build STACK --source [PACKAGE=]PATH_OR_GIT[@REV]`."""

    def command(terminal: Terminal) -> tuple[Any, int]:
        project = load_project()
        require_one(given)
        name = choose("stack", given.stack, project.definitions.stacks)
        base = choose("base", given.base or project.default_base, project.definitions.bases)
        prepared = prepare(project, replace(given, stack=name, base=base), terminal)
        with Engine() as held:
            bundle = Path(given.offline) if given.offline else None
            builder = Builder(project, held, terminal.say, bundle, fresh=given.fresh)
            try:
                built = builder.build(name, base, again=given.again, fork=prepared.fork)
            except BuildError as error:
                raise explained(error, prepared, given) from error
        _show(built, prepared, terminal)
        return {"images": [_row(built, prepared)]}, 0

    return run(command, as_json=as_json)


def require_one(given: SourceArguments) -> None:
    """See that sources go with one stack, and that what only they have is not given without.

    Raises:
        UsageError: they do not.
    """
    if not given.sources:
        flag = "--tag" if given.tag else "--despite"
        raise UsageError(f"{flag} belongs to a build of your own source",
                         hint=f"invoke build {given.stack} --source PATH_OR_GIT[@REV] {flag} ..."
                         )  # fmt: skip
    if given.stack == "all":
        raise UsageError("--source: say which stack it is for",
                         hint="invoke build STACK --source PATH_OR_GIT[@REV]")  # fmt: skip


def prepare(project: Project, given: SourceArguments, terminal: Terminal) -> Prepared:
    """Read the sources and see that they fit, as far as that shows before a build.

    Raises:
        UsageError: one is not there, is not the package's, or does not fit.
    """
    known = fork.buildable(project.definitions, given.stack)
    image = catalog.resolve(project.definitions, given.stack, given.base)
    sources: dict[str, Source] = {}
    trees: dict[str, Tree] = {}
    main = next(iter(image.stack.packages))
    for text in given.sources:
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
        repaired[name] = check_fixes(all_fixes(image), name, tree, given.typed)
    return Prepared(fork=made, image=image, repaired=repaired)


def all_fixes(image: ResolvedImage) -> list[Fix]:
    """Every fix that a build of an image applies."""
    return [*image.fixes, *(fix for wheel in image.wheels for fix in wheel.fixes)]


def check_fixes(fixes: Sequence[Fix], package: str, tree: Tree, typed: str) -> list[str]:
    """See that a package's fixes fit its tree, where the tree can tell; those it has already.

    Raises:
        UsageError: with every one that does not fit.
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


def explained(error: BuildError, prepared: Prepared, given: SourceArguments) -> Exception:
    """A build's failure, in the words of what a user's tree can do about it."""
    package = prepared.fork.sources[0].package
    wrong = fit.conflict(error.why, all_fixes(prepared.image), f"your {package}", given.typed)
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


def named(project: Project, engine: Engine, reference: str, stack: str, base: str) -> Built:
    """An image by its tag or id, seen to be of a stack and a base by its labels.

    Args:
        stack: `all` takes any; so does an empty base.

    Raises:
        UsageError: there is none, or it is another's.
    """
    info = engine.image(reference)
    if info is None:
        raise UsageError(f"--image: the engine has no image {shown(reference)!r}",
                         hint="docker images 'stackyard/*' shows what it has")  # fmt: skip
    require_labels(info.labels, reference, stack, base)
    found = info.labels["stackyard.stack"], info.labels["stackyard.base"]
    choose("stack", found[0], project.definitions.stacks)
    choose("base", found[1], project.definitions.bases)
    image = catalog.resolve(project.definitions, *found)
    own = fork.fork_of(project.definitions, info.labels)
    image = own.image(image) if own else image
    return Built(image=image, tag=reference, info=info, seconds=0.0, made=False)


def named_here(project: Project, image: str, stack: str, base: str) -> Built | None:
    """Return the image that `--image` names on this machine's engine; None where it was not given.

    Raises:
        UsageError: there is none, or it is another's.
    """
    if not image:
        return None
    with Engine() as held:
        return named(project, held, image, stack, base)
