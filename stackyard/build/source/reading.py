"""Read users' source trees: folders, and git repositories at a revision or with local changes.

Owns all git commands. It uses the caller's own git, so that credentials stay there, and nothing of
`.git` goes into a build. `build.source.tree` interprets a tree.

Over 300 lines: one reader, with all that git may answer.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from stackyard.build.source import tree as source_tree
from stackyard.build.source.naming import Asked, Source, clean_address
from stackyard.build.source.tree import Entry, Tree
from stackyard.system import cleanup, process
from stackyard.system.errors import CommandError, StackyardError, UsageError, shown
from stackyard.system.process import last_lines
from stackyard.system.stream import Note

# In bytes: a tree is held in memory, and should hold no checkpoints or data sets.
LARGEST = 2 * 2**30
_SKIPPED = {".git", "__pycache__", ".hg", ".svn", ".tox", ".venv", ".mypy_cache", ".pytest_cache"}
_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR",
          "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE")  # fmt: skip
# Print git's warnings only if it fails, after its output: they are neither names nor changes.
_APART = (
    'exec 3>&1; said=$("$@" 2>&1 >&3 3>&-) && exit 0; code=$?; printf "%s\\n" "$said"; exit $code'
)
Say = Callable[[str], None]


def read(asked: Asked, version: str, say: Say) -> tuple[Source, Tree]:
    """Read the tree that `--source` names, and describe it for the image's label.

    Args:
        version: version of the release that it replaces.

    Raises:
        UsageError: there is no such tree, or it is of another package.
    """
    if asked.remote or asked.revision:
        _require_git()
        source, tree = _cloned(asked, say)
    else:
        folder = Path(asked.location)
        if not folder.is_dir():
            raise UsageError(
                f"--source: there is no folder {shown(asked.location)}",
                why="it is no address of a git repository either"
                if not folder.exists() else "it is a file",
                hint="--source PATH, PATH@REV, https://HOST/REPOSITORY[@REV] or"
                " git@HOST:REPOSITORY[@REV]",
            )  # fmt: skip
        source, tree = _folder(asked, folder)
    _require_project(asked, tree)
    if source_tree.asks_git(tree):
        plain = source.commit or source.digest.removeprefix("sha256:")
        local = f"g{plain[:12]}" + (".dirty" if source.dirty else "")
        source = replace(source, version=f"{version.partition('+')[0]}+{local}")
    for path in source.submodules:
        if path.endswith("(not checked out)"):
            say(Note(f"submodule {path}: it is empty in the build"))
        elif path.endswith("not taken)"):
            say(Note(f"repository {path}"))
    return source, tree


def _require_project(asked: Asked, tree: Tree) -> None:
    where = shown(asked.location) + (f" at {asked.revision}" if asked.revision else "")
    if not tree:
        raise UsageError(f"--source: {where} holds no file that is in git or could be",
                         hint="git add what belongs to it, or name another folder")  # fmt: skip
    if not source_tree.is_project(tree):
        inner = [path for path in tree if path.endswith(("/pyproject.toml", "/setup.py"))]
        near = min(inner, key=lambda path: path.count("/"), default="")
        raise UsageError(
            f"--source: {where} is no Python project",
            why="it has neither pyproject.toml nor setup.py",
            hint=f"did you mean its folder {near.rpartition('/')[0]}?" if near
            else "name the folder that has one of them",
        )  # fmt: skip
    name = source_tree.project_name(tree)
    if name and canonicalize_name(name) != canonicalize_name(asked.package):
        raise UsageError(
            f"--source: {where} is the tree of {shown(name)}, not of {asked.package}",
            hint=f"--source {shown(name)}=..., if the stack has it; or name another tree",
        )


def _require_git() -> None:
    if shutil.which("git") is None:
        raise UsageError("--source: there is no git on this machine",
                         why="a revision or an address is read by your own git",
                         hint="apt-get install git, or name a folder without @REV")  # fmt: skip


def _git(folder: Path, *words: str, timeout: float = 60.0) -> str:
    # git must not ask for a password: a credential helper or an agent answers, or it fails.
    env = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    # Called from a git hook, these variables would name the hook's repository.
    less = [part for name in _HOOKS if name in os.environ for part in ("-u", name)]
    words = ("git", "-C", str(folder), *words)
    apart = [*(["env", *less] if less else []), "sh", "-c", _APART, "sh", *words]
    done = process.run(apart, env=env, timeout=timeout, check=False)
    if done.code:
        what = f"command failed with exit code {done.code}: {' '.join(words)[:200]}"
        raise CommandError(what, code=done.code, why=last_lines(done.output))
    return done.output


def _listed(folder: Path, *words: str) -> list[str]:
    return [name for name in _git(folder, "ls-files", "-z", *words).split("\0") if name]


def _cloned(asked: Asked, say: Say) -> tuple[Source, Tree]:
    """Read a revision of a repository from a temporary clone."""
    address = asked.location if asked.remote else str(Path(asked.location).resolve())
    say(f"fetching {shown(clean_address(address) or asked.location)}")
    with cleanup.folder("clone") as folder:
        clone = folder / "tree"
        try:
            _git(folder, "clone", "-q", "--no-checkout", "--", address, "tree", timeout=1800)
        except CommandError as error:
            raise UsageError(
                f"--source: git cannot clone {shown(asked.location)}",
                why=last_lines(error.why, 5),
                hint=f"git clone {shown(asked.location)} must work in your own shell, without"
                " asking anything",
            ) from error
        commit = _resolve(clone, asked)
        _git(clone, "checkout", "-q", "--detach", commit, timeout=600)
        if (clone / ".gitmodules").is_file():
            say("fetching its submodules")
            try:
                _git(clone, "submodule", "--quiet", "update", "--init", "--recursive", timeout=1800)
            except CommandError as error:
                raise UsageError(
                    f"--source: the submodules of {shown(asked.location)} cannot be fetched",
                    why=last_lines(error.why, 5),
                    hint="clone it yourself, with the submodules that a build needs, and name the"
                    " folder",
                ) from error
        source, tree = _folder(asked, clone)
    return replace(source, origin=clean_address(address) or source.origin), tree


def _resolve(clone: Path, asked: Asked) -> str:
    """Return the full id of the commit that the revision names."""
    wanted = asked.revision or "HEAD"
    for name in (wanted, f"origin/{wanted}"):
        try:
            words = ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
            return _git(clone, *words).strip()
        except CommandError:
            continue
    refs = _git(clone, "for-each-ref", "--format=%(refname:lstrip=2)", "--count=20",
                "--sort=-creatordate", "refs/tags", "refs/remotes")  # fmt: skip
    names = [name.removeprefix("origin/") for name in refs.split()]
    there = ", ".join(name for name in dict.fromkeys(names) if name not in ("HEAD", "origin"))
    raise UsageError(
        f"--source: {shown(asked.location)} has no revision {shown(wanted)!r}",
        why=f"branches and tags, newest first: {there or 'none'}",
        hint="@ takes a branch, a tag or a commit that one of these leads to",
    )


def _folder(asked: Asked, folder: Path) -> tuple[Source, Tree]:
    """Read a folder: in a repository all files that git does not ignore, else everything."""
    top = _repository(folder)
    if top is None:
        tree = _entries(folder, _walk(folder))
        return _source(asked, tree), tree
    commit = _head(folder)
    names, said, unseen = _taken(folder, top)
    tree = _entries(folder, names)
    changed = _git(folder, "status", "--porcelain", "--untracked-files=normal",
                   "--ignore-submodules=none", "--", ".")  # fmt: skip
    source = _source(
        asked, tree, commit=commit, dirty=bool(commit and (unseen or changed.strip())),
        origin=_origin(folder), submodules=tuple(said),
    )  # fmt: skip
    return source, tree


def _head(folder: Path) -> str:
    try:
        return _git(folder, "rev-parse", "--verify", "--quiet", "HEAD").strip()
    except CommandError:
        return ""  # nothing was ever committed


def _taken(folder: Path, top: Path) -> tuple[list[str], list[str], bool]:
    """List the files that git does not ignore, submodules included.

    Returns:
        Their paths; a description of each submodule; and true if git was told not to look for
        changes of some files (assume-unchanged, skip-worktree).
    """
    staged = _listed(folder, "--stage")
    modules = [line.partition("\t")[2] for line in staged if line.startswith("160000 ")]
    names = _listed(folder, "--cached", "--others", "--exclude-standard")
    unseen = any(line[0].islower() or line[0] == "S" for line in _listed(folder, "-v"))
    # git lists the folder alone of a nested repository that is not a submodule.
    said = [f"{name[:-1]} (no submodule: not taken)" for name in names if name.endswith("/")]
    for path in modules:
        inner, inside = folder / path, _repository(folder / path)
        if inside is None or inside == top:
            said.append(f"{path} (not checked out)")
            continue
        said.append(f"{path} {_head(inner)}")
        deeper, told, hidden = _taken(inner, inside)
        names += [f"{path}/{name}" for name in deeper]
        said += [f"{path}/{words}" for words in told]
        unseen = unseen or hidden
    return names, said, unseen


def _source(
    asked: Asked, tree: Tree, *, commit: str = "", dirty: bool = False, origin: str = "",
    submodules: tuple[str, ...] = (),
) -> Source:  # fmt: skip
    return Source(
        package=asked.package, origin=origin, revision=asked.revision, commit=commit, dirty=dirty,
        digest=source_tree.digest(tree), submodules=submodules, version="", files=len(tree),
    )  # fmt: skip


def _repository(folder: Path) -> Path | None:
    """Return the repository that a folder is in; None if there is none or it is ignored."""
    if shutil.which("git") is None:
        if any(
            (parent / ".git").exists() for parent in (folder.resolve(), *folder.resolve().parents)
        ):
            _require_git()
        return None
    try:
        top = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    except CommandError as error:
        if "dubious ownership" in error.why:
            raise UsageError(f"--source: git does not trust {folder}", why=last_lines(error.why, 4),
                             hint="git config --global --add safe.directory ..."
                             ) from error  # fmt: skip
        return None
    if folder.resolve() != top.resolve():
        try:
            _git(folder, "check-ignore", "--quiet", ".")
            return None  # the repository does not hold a folder that it ignores
        except CommandError:
            pass
    return top


def _origin(folder: Path) -> str:
    try:
        return clean_address(_git(folder, "remote", "get-url", "origin"))
    except CommandError:
        return ""


def _walk(folder: Path) -> Iterable[str]:
    for here, folders, files in os.walk(folder):
        linked = [name for name in folders if (Path(here) / name).is_symlink()]
        folders[:] = sorted(
            name for name in folders
            if name not in _SKIPPED and name not in linked and not name.endswith(".egg-info")
        )  # fmt: skip
        for name in sorted([*files, *linked]):
            yield str((Path(here) / name).relative_to(folder))


def _behind_link(folder: Path, place: str, known: dict[str, bool]) -> bool:
    """Say if a folder of the tree, or one above it, is a symbolic link."""
    if place not in known:
        above = _behind_link(folder, place.rpartition("/")[0], known)
        known[place] = above or (folder / place).is_symlink()
    return known[place]


def _entries(folder: Path, names: Iterable[str]) -> Tree:
    found: dict[str, Entry] = {}
    linked: dict[str, bool] = {"": False}
    size = 0
    for name in sorted(set(names)):
        path = folder / name
        if _behind_link(folder, name.rpartition("/")[0], linked):
            continue  # tracked, but a link has replaced its folder: to git it is deleted
        try:
            kind = path.lstat()
            if stat.S_ISLNK(kind.st_mode):
                link = str(path.readlink())
                if source_tree.leads_out(name, link):
                    raise UsageError(
                        f"--source: {shown(name)} leads out of the tree, to {shown(link)}",
                        hint="put the file itself there, or have git ignore the link",
                    )
                found[name] = Entry(link=link)
            elif stat.S_ISREG(kind.st_mode):
                size += kind.st_size
                if size > LARGEST:
                    raise UsageError(f"--source: {shown(str(folder))} has more than 2 GiB",
                                     hint="have git ignore what is no source")  # fmt: skip
                found[name] = Entry(data=path.read_bytes(), executable=bool(kind.st_mode & 0o100))
        except FileNotFoundError:
            if not name.isprintable() or "\ufffd" in name:
                raise StackyardError(f"--source: a file's name cannot be read: {shown(name)}",
                                     hint="give it a name in UTF-8 without breaks"
                                     ) from None  # fmt: skip
            continue  # tracked, but deleted: the tree is dirty and has no such file
        except OSError as error:
            raise StackyardError(f"{path} cannot be read", why=str(error)) from error
    return found
