"""Read which machines a run may use: hosts.yml, and inventories that users already have.

Owns the reading of hosts.yml, of deepspeed hostfiles, of node sets and of names out of an ssh
configuration, and their rules. Pure: texts in, values out; it collects every problem. It must not
connect.

Over 300 lines: four forms of one inventory, with their rules.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stackyard.definitions.document import Mapping as Entry
from stackyard.definitions.document import parse_document
from stackyard.mesh import settings
from stackyard.system.errors import DefinitionError, Problem, UsageError, shown

# A host's name becomes a node's: a host name, an ssh certificate's principal, part of a label.
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
SOCKET = "/var/run/docker.sock"
MAX_NODES = 64
MAX_SLOTS = 256
MAX_HOSTS = 4096
# Characters that only a node set has; other words are names by comma, in the order given.
_SET = re.compile(r"[\[\]!&^]")
_LONG_NUMBER = re.compile(r"[0-9]{6}")
_ADDRESS = re.compile(r"[A-Za-z0-9._:%-]+")
_INTERFACE = re.compile(r"[A-Za-z0-9._:@-]{1,15}")
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@-]*")
_VOLUME = re.compile(r"volume:[a-zA-Z0-9][a-zA-Z0-9_.-]+")


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Describe a folder that every host makes visible to its nodes.

    Attributes:
        source: a path on the host, or `volume:NAME`, a volume of its engine.
        shared: all hosts see the same folder (NFS, Lustre); this is checked.
        read_only: nodes cannot write to it (a user's tree, `--overlay`).
    """

    source: str
    shared: bool = False
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Host:
    """Describe one machine.

    Attributes:
        name: in the inventory, and of its node.
        ssh: the destination for ssh: an address, or an alias of ~/.ssh/config.
        user: empty where ssh's own configuration decides, as are `port` (0) and `key`.
        config: an ssh configuration in place of the caller's own.
        gpus: `all`, `none`, or indexes separated by commas.
        interface: the network interface for training traffic; `auto` chooses one.
        engine: the socket of its container engine.
        nodes: the number of containers of a run on it.
        env: variables of every process of a training on it.
    """

    name: str
    ssh: str
    user: str = ""
    port: int = 0
    key: str = ""
    gpus: str = "all"
    interface: str = "auto"
    engine: str = SOCKET
    nodes: int = 1
    config: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Hold the hosts of an inventory, in order, and the folders that their nodes see.

    Attributes:
        hosts: the machines, by name; the names become those of nodes.
        folders: what every node sees, by path in the nodes.
    """

    source: str
    hosts: tuple[Host, ...]
    folders: Mapping[str, Folder] = field(default_factory=dict)

    def only(self, names: Sequence[str]) -> Fleet:
        """Return the fleet with only the hosts of these names, in the order given.

        Raises:
            UsageError: the inventory lacks one of them.
        """
        known = {host.name: host for host in self.hosts}
        for name in names:
            if name not in known:
                raise UsageError(
                    f"{self.source} has no host {shown(name)!r}", hint=f"one of: {', '.join(known)}"
                )
        return replace(self, hosts=tuple(known[name] for name in dict.fromkeys(names)))


def read_inventory(text: str, source: str) -> Fleet:
    """Read the hosts from the text of a hosts.yml or of a deepspeed hostfile.

    Raises:
        DefinitionError: the text is wrong; holds every problem.
    """
    problems: list[Problem] = []
    if is_hostfile(text):
        fleet = read_hostfile(text, source, problems)
    else:
        fleet = read_yaml(text, source, problems)
    if problems:
        raise DefinitionError(problems)
    return fleet


def is_hostfile(text: str) -> bool:
    """Return whether a text looks like a deepspeed hostfile (lines `name slots=N`)."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return any(re.fullmatch(r"\S+\s+slots\s*=.*", line) for line in lines)


def read_hostfile(text: str, source: str, problems: list[Problem]) -> Fleet:
    """Read lines `name slots=N`, each of which takes the first N GPUs of a host."""
    hosts: list[Host] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        body = line.split("#")[0].strip()
        if not body:
            continue
        found = re.fullmatch(r"(\S+)\s+slots\s*=\s*([0-9]{1,4})", body)

        def refuse(message: str, at: int = number) -> None:
            problems.append(Problem(file=source, line=at, key="", message=message))

        if not found:
            refuse(f"not understood: {body!r}; a line is: name slots=N")
            continue
        target, slots = found[1], int(found[2])
        if not 1 <= slots <= MAX_SLOTS:
            refuse(f"slots must be 1 to {MAX_SLOTS}")
        gpus = ",".join(str(index) for index in range(slots))
        host = _host_named(target, gpus)
        if not _reachable(host):
            refuse(f"{target!r} is no address or name that ssh knows")
        elif host.name in lines:
            refuse(f"duplicate host {target!r}, first given on line {lines[host.name]}")
        else:
            lines[host.name] = number
            hosts.append(host)
    if not hosts and not problems:
        problems.append(Problem(file=source, line=1, key="", message="no host is named in it"))
    return Fleet(source=source, hosts=tuple(hosts))


def _host_named(target: str, gpus: str = "all") -> Host:
    """Return a host for `[user@]place`, with a name that a node can have."""
    user, _, place = target.rpartition("@")
    name = re.sub(r"[^a-z0-9]+", "-", place.lower()).strip("-")[:40].strip("-")
    return Host(name=name, ssh=place, user=user, gpus=gpus)


def _reachable(host: Host) -> bool:
    """Return whether ssh accepts the host as a destination, and no part of it as an option."""
    return (
        bool(host.name)
        and bool(_ADDRESS.fullmatch(host.ssh))
        and not host.ssh.startswith("-")
        and (not host.user or bool(_USER.fullmatch(host.user)))
    )


def read_yaml(text: str, source: str, problems: list[Problem]) -> Fleet:
    """Read a hosts.yml (docs/howto/hosts.md)."""
    top = parse_document(text, file=source, problems=problems)
    return read_top(top, source) if top is not None else Fleet(source=source, hosts=())


def read_top(top: Entry, source: str) -> Fleet:
    """Read the top mapping of a hosts.yml."""
    defaults = top.mapping("defaults")
    common = _settings(defaults, Host(name="", ssh="")) if defaults else Host(name="", ssh="")
    hosts = []
    outer = top.mapping("hosts")
    for name in outer.keys() if outer else []:
        assert outer is not None
        entry = outer.mapping(name)
        given = replace(common, name=name, ssh=name)
        if not NAME.fullmatch(name):
            outer.problem("a host's name has lower-case letters, digits and `-`", key=name)
        hosts.append(_host(entry, given) if entry is not None else given)
    if not hosts and (outer is not None or not top.has("hosts")):
        top.missing("hosts", "no host is named in it")
    folders = _folders(top)
    top.done()
    if outer is not None:
        _same_target(outer, hosts)
        _same_node(outer, hosts)
    return Fleet(source=source, hosts=tuple(hosts), folders=folders)


def _host(entry: Entry, given: Host) -> Host:
    host = replace(given, ssh=entry.single_line("address", given.ssh))
    if entry.has("address") and (not _ADDRESS.fullmatch(host.ssh) or host.ssh.startswith("-")):
        entry.problem("must be an address or a name that ssh knows", key="address")
    return _settings(entry, host)


def _settings(entry: Entry, given: Host) -> Host:
    host = replace(
        given,
        user=entry.single_line("user", given.user),
        port=entry.integer("port", given.port),
        key=entry.single_line("key", given.key),
        gpus=entry.word("gpus", given.gpus),
        interface=entry.single_line("interface", given.interface),
        engine=entry.single_line("engine", given.engine),
        config=entry.single_line("ssh_config", given.config),
        nodes=entry.integer("nodes", given.nodes),
        env={**given.env, **_variables(entry)},
    )
    checks = (
        ("user", not host.user or bool(_USER.fullmatch(host.user)), "must be a user's name"),
        ("port", 0 <= host.port < 65536, "must be a port, 1 to 65535"),
        ("gpus", bool(gpu_indexes(host.gpus)) or host.gpus in ("all", "none"),
         "must be all, none, or indexes as in 0,1"),
        ("interface", bool(_INTERFACE.fullmatch(host.interface)), "must be an interface or auto"),
        ("engine", host.engine.startswith("/"), "must be the path of the engine's socket"),
        ("nodes", 1 <= host.nodes <= MAX_NODES, f"must be 1 to {MAX_NODES}"),
    )  # fmt: skip
    for key, good, message in checks:
        # Each problem of `defaults` is reported there only, not again for every host.
        if not good and entry.has(key):
            entry.problem(message, key=key)
    entry.done()
    return host


def _variables(entry: Entry) -> dict[str, str]:
    """Read `env`; numbers and words such as `no` are the text that stands there."""
    outer = entry.mapping("env")
    found = {name: outer.word(name) for name in outer.keys()} if outer else {}  # noqa: SIM118
    for name, value in found.items():
        wrong = settings.why_not(name, value)
        if outer and wrong:
            outer.problem(f"cannot be set: {wrong}", key=name)
    return found


def gpu_indexes(text: str) -> tuple[int, ...]:
    """Return the indexes of `0,1`; empty for any other text, or when one is named twice."""
    words = text.split(",")
    if not all(re.fullmatch(r"[0-9]{1,3}", word) for word in words):
        return ()
    found = tuple(int(word) for word in words)
    return found if len(set(found)) == len(found) else ()


def _folders(top: Entry) -> dict[str, Folder]:
    outer = top.mapping("folders")
    found: dict[str, Folder] = {}
    for place in outer.keys() if outer else []:
        assert outer is not None
        if outer.is_mapping(place):
            entry = outer.mapping(place)
            assert entry is not None
            folder = Folder(source=entry.single_line("path"), shared=entry.flag("shared", False))
            entry.done()
        else:
            folder = Folder(source=outer.single_line(place))
        if not is_place(place):
            outer.problem("must be an absolute path inside the nodes", key=place)
        path = folder.source.startswith(("/", "~/")) and ":" not in folder.source
        if not path and not _VOLUME.fullmatch(folder.source):
            outer.problem("must be an absolute path on the hosts, or volume:NAME", key=place)
        found[place] = folder
    return found


def is_place(place: str) -> bool:
    """Return whether nodes can have a folder there that replaces nothing they need."""
    parts = place.split("/")[1:]
    return (
        place.startswith("/")
        and ":" not in place
        and place.isprintable()
        and place == place.strip()
        and any(parts)
        and not {".", ".."} & set(parts)
        and parts[0] not in ("run", "proc", "sys")
    )


def _same_target(outer: Entry, hosts: Iterable[Host]) -> None:
    seen: dict[tuple[str, ...], str] = {}
    for host in hosts:
        target = (host.ssh, host.user, str(host.port), host.engine, host.config)
        if target in seen:
            outer.problem(
                f"is the same machine as {seen[target]!r} ({host.ssh}); a host that is to get"
                " several containers says so by nodes: N",
                key=host.name,
            )
        seen.setdefault(target, host.name)


def _same_node(outer: Entry, hosts: Sequence[Host]) -> None:
    """Refuse hosts whose nodes would have the same name: `a` with `nodes: 2` also makes `a-1`."""
    owner: dict[str, str] = {}
    for host in sorted(hosts, key=lambda one: one.nodes == 1):
        for node in node_names(host) if host.nodes <= MAX_NODES else ():
            if owner.setdefault(node, host.name) != host.name:
                message = f"has the name of a node of {owner[node]!r}: one of them needs another"
                outer.problem(message, key=host.name)


def node_names(host: Host) -> tuple[str, ...]:
    """Return the names of a host's nodes: the host's, numbered where there are several."""
    if host.nodes == 1:
        return (host.name,)
    return tuple(f"{host.name}-{number + 1}" for number in range(host.nodes))


def from_names(names: Sequence[str], source: str) -> Fleet:
    """Return hosts named one by one, as addresses or aliases of the caller's ssh configuration."""
    hosts = [_host_named(name) for name in names]
    counts = Counter(host.name for host in hosts if _reachable(host))
    wrong = [f"{n!r} is no address or name that ssh knows"
             for n, host in zip(names, hosts, strict=True) if not _reachable(host)]  # fmt: skip
    wrong += [f"duplicate host {name!r}" for name, count in counts.items() if count > 1]
    problems = [Problem(file=source, line=1, key="", message=message) for message in wrong]
    if problems:
        raise DefinitionError(problems)
    return Fleet(source=source, hosts=tuple(hosts))


def expand(text: str) -> list[str]:
    """Return the names in a ClusterShell node set (`gpu[01-64]`), or in names by comma.

    A node set's names come in ClusterShell's order, by number; names by comma stay as given.
    Groups (`@gpus`) are not looked up: that would run the commands of a file on this machine.

    Raises:
        UsageError: the text is no node set, or one with a group, no name or too many.
    """
    words = [word.strip() for word in text.split(",")]
    group = next((word for word in words if word.startswith("@")), "")
    if group:
        raise UsageError(
            f"{shown(group)!r} is a group", why="groups of ClusterShell are not looked up"
        )
    if not _SET.search(text):
        return words
    # It takes 0.1 s to import, which only a node set needs.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    many = f"at most {MAX_HOSTS} hosts, with numbers of at most 5 digits"
    if _LONG_NUMBER.search(text):
        raise UsageError(f"{shown(text)!r} names too many hosts", why=many)
    try:
        found = NodeSet(text, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise UsageError(f"{shown(text)!r} is no node set", why=shown(str(error))) from error
    if not 0 < len(found) <= MAX_HOSTS:
        raise UsageError(
            f"{shown(text)!r} names {len(found) or 'no'} hosts", why=many if found else ""
        )
    return list(found)


def matching(config: str, pattern: str) -> list[str]:
    """Return the names in an ssh configuration's `Host` lines that match a shell pattern.

    Patterns among these names are left out.
    """
    found: list[str] = []
    for line in config.splitlines():
        given = re.fullmatch(r"\s*host(?:\s*=\s*|\s+)(.*)", line, re.IGNORECASE)
        words = given[1].replace('"', " ").split() if given else []
        found += [w for w in words if not set(w) & set("*?!") and fnmatch.fnmatchcase(w, pattern)]
    return list(dict.fromkeys(found))
