"""What fuzzed definitions are made of: broken bytes, lines, structures, and known words at random.

Owns the strategies; what must hold of their examples is `test_fuzz_definitions`'s.
"""

from __future__ import annotations

import copy
import shutil

import yaml
from hypothesis import strategies as st

SCALARS = [
    "", "~", "null", "true", "no", "0", "-1", "41", "1e999", ".nan", ".inf", "9" * 5000, "3.10",
    "0x1f", "012", "0o17", "1_000", "1:30", "2026-01-02", "'3.10'", '""', '"\\0"', '"\\e[2J"',
    '"a\\nRUN b"', '"\\uD800"', '"\\U0010FFFF"', "a: b", "- a", "[a", "{a", "[]", "{}", "[[]]",
    "{a: {a: {a: {}}}}", "&a [*a]", "&a {a: *a}", "*nothing", "!!str 3", "!!int [1]", "!!null [a]",
    "!!bool {}", "!!binary aGk=", "!!set {a}", "!!omap [a: b]",
    "!!python/object/apply:os.system [a]",
    "!x y", "<<", "=", "? a", "|\n  a\n  b", ">-\n  a", "# a", "@a", "`a", "%a", "\t", "\x00",
    "\x07", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffe", "é", "中", "😀", "{data}", "{nothing}",
    "{", "{0}", "{data!r:>9999999}", "{data.__class__}", "(a+)+$", "a{99999999999}", "[[a]",
    "(" * 500, "[" * 5000, "a" * 70_000, "../../x",
    "/etc", "-e .", "$HOME", "`id`", "a==1", "a==1; " + "(" * 3000, "==" + "9" * 5000, "===x",
    "~=1",
    "9!1.0", "1.0+a.b", "one", "two", "cpu", "ngc", "fairseq", "all",
]  # fmt: skip
SPREAD = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
DOCUMENTS = [
    "", "\n", " ", "\t", "\x00", "\ufeff", "---", "...", "--- a\n--- b", "a", "- a", "[]", "{}",
    "~",
    "%YAML 9.9\n---\na: b", "&a a: *a", "&a\na: *a", "? [a]\n: b", "? a", ": a", '"": a', "1: a",
    "~: a", "a: b\na: c", "<<: {name: a}", "[" * 100_000, "{a: " * 100_000, "- " * 100_000,
    "".join(" " * depth + "a:\n" for depth in range(1000)), SPREAD, "x: " + "9" * 100_000,
    "a" * 300_000, ("a" * 70_000 + ": b\n") * 3, "".join(f"k{i}: v\n" for i in range(3000)),
]  # fmt: skip


@st.composite
def broken_bytes(draw, content):
    """A file with a few slices of it taken out, doubled, moved or overwritten."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        to = min(len(content), at + draw(st.sampled_from((0, 1, 2, 8, 64, 4000))))
        put = draw(st.one_of(
            st.binary(max_size=4), st.sampled_from(SCALARS).map(lambda s: s.encode("utf-8")),
            st.just(content[at:to] * 2), st.just(content[:to]),
        ))  # fmt: skip
        content = content[:at] + put + content[to:]
    return content


@st.composite
def broken_lines(draw, text):
    """A file with a few lines taken out, doubled, swapped, indented, or given another value."""
    lines = text.split("\n")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        key, colon, _ = line.partition(":")
        value = draw(st.sampled_from(SCALARS))
        lines[at : at + 1] = draw(st.sampled_from((
            [], [line, line], [f"  {line}"], [line.lstrip()], [f"\t{line}"], [f"{line}\r"],
            [f"{key}{colon} {value}"], [f"{key}{colon} {value}"], [f"{value}: {line.strip()}"],
            [line, value], [lines[-1 - at]], [f"{key}x{colon} a"], [f"- {line}"],
            [f"{line} {value}"],
        )))  # fmt: skip
        lines = lines or [""]
    ending = draw(st.sampled_from(("\n", "\n", "\n", "\r\n", "\r", "\x85", "\u2028")))
    return draw(st.sampled_from(("", "", "", "\ufeff", "---\n", "%TAG ! a\n---\n"))) + ending.join(
        lines
    )


def nested():
    """Values of every kind that YAML has, and some that hold themselves."""
    loop, ring = [], {}
    loop.append(loop)
    ring["name"] = ring
    plain = st.sampled_from([
        None, True, 0, -1, 10**30, 10**4000, 0.1, float("inf"), float("nan"), "", "a", "1.0",
        "a\nb",
        "\x1b", b"a", [], {}, [None], {"a": "b"}, {1: 2}, {None: "a"}, {"": ""}, {True: []},
        loop, ring,
        ["a"] * 2000, ["a", ["b"]], {f"k{i}": "a" for i in range(500)}, {(1, 2): "a"},
        {"a" * 9000: 1},
        "a" * 9000, "cpu", "cuda", "{data}", "==1.0", "torch==2.0.0", "a==1; b", "[", "\\", "1.2.0",
    ])  # fmt: skip
    return st.one_of(plain.map(copy.deepcopy), st.text(max_size=8))


def places(value, path=()):
    """The way to every value inside a document, as far down as definitions go."""
    inner = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else inner:
        yield (*path, key)
        if len(path) < 8:
            yield from places(item, (*path, key))


@st.composite
def broken_structure(draw, document):
    """A document with one or two of its values or keys replaced, removed, wrapped or renamed."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        there = list(places(document))
        if not there:
            break  # nothing was left of it
        *way, key = draw(st.sampled_from(there))
        holder = document
        for step in way:
            holder = holder[step]
        action = draw(st.sampled_from(("put", "put", "put", "remove", "wrap", "rename", "copy")))
        value = holder.get(key) if isinstance(holder, dict) else holder[key]
        if action == "put":
            holder[key] = draw(nested())
        elif action == "wrap":
            holder[key] = draw(st.sampled_from(([value], {"a": value})))
        else:
            if action != "copy":
                del holder[key]
            name = draw(st.sampled_from((f"{key}s", f"{key}"[:-1], "env", "name", 1, None, "")))
            if isinstance(holder, dict) and action != "remove":
                holder[name] = value
    return written(document)


@st.composite
def grown(draw, examples):
    """A value like one of the examples: keys and leaves of theirs, few of them wrong."""
    like = draw(st.sampled_from(examples))
    if draw(st.integers(0, 199)) == 77:
        return draw(nested())
    if isinstance(like, dict):
        known = [example for example in examples if isinstance(example, dict)]
        keys = dict.fromkeys(key for example in known for key in example)
        kept = [key for key in keys if key in like or draw(st.integers(0, 19)) == 11]
        return {
            key: draw(grown([example[key] for example in known if key in example]))
            for key in kept
            if draw(st.integers(0, 199)) != 77
        }
    if isinstance(like, list):
        items = [item for example in examples if isinstance(example, list) for item in example]
        return draw(st.lists(grown(items), max_size=4)) if items else []
    return like


def written(document):
    return yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)


# What becomes of a folder: an action on a path that is there, and maybe another name beside it

ODD = ["é.yml", "A.yml", ".yml", "a b.yml", "a\n.yml", "-a.yml", "a.yaml", "a" * 200 + ".yml",
       "a.lock",
       "cpu.x.lock", "*.yml", "..yml", "\udc80.yml", "\x1b[2J.yml"]  # fmt: skip


def remove(path, other=None):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def replace(make):
    def act(path, other):
        remove(path)
        make(path)

    return act


ACTIONS = {
    "remove": remove,
    "rename": lambda path, other: path.rename(other),
    "copy": lambda path, other: shutil.copy(path, other),
    "copy a folder": lambda path, other: shutil.copytree(
        path.parent, other.with_suffix(""), symlinks=True
    ),
    "not text": lambda path, other: path.write_bytes(b"name: \xff\n"),
    "add what is not text": lambda path, other: other.write_bytes(b"\xff\xfe\x00"),
    "empty": lambda path, other: path.write_bytes(b""),
    "folder": replace(lambda path: path.mkdir()),
    "file": replace(lambda path: path.write_text("a: b")),
    "loop": replace(lambda path: path.symlink_to(path.name)),
    "loop of folders": lambda path, other: other.symlink_to(path.parent, target_is_directory=True),
    "dangling link": replace(lambda path: path.symlink_to("nothing")),
}
