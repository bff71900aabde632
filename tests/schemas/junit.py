"""The shape of JUnit XML that CI systems read, after junit-10.xsd of Jenkins' xunit plugin.

Its elements and attributes that we may write; what is not named here is wrong. Written out here: no
copy of that file is kept, and reading one would take a library of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

# Element: attributes that it must have, attributes that it may have, children.
SHAPE = {
    "testsuites": ((), ("name", "time", "tests", "failures", "errors"), ("testsuite",)),
    "testsuite": (
        ("name", "tests", "failures", "errors"),
        ("group", "time", "skipped", "timestamp", "hostname", "id", "package", "file",
         "log", "url"),
        ("testsuite", "properties", "testcase", "system-out", "system-err"),
    ),
    "testcase": (
        ("name",),
        ("time", "classname", "group"),
        ("skipped", "error", "failure", "system-out", "system-err"),
    ),
    "properties": ((), (), ("property",)),
    "property": (("name", "value"), (), ()),
    "failure": ((), ("type", "message"), ()),
    "error": ((), ("type", "message"), ()),
    "skipped": ((), ("type", "message"), ()),
    "system-out": ((), (), ()),
    "system-err": ((), (), ()),
}  # fmt: skip
TEXT = ("failure", "error", "skipped", "system-out", "system-err")
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")


def problems(data: bytes) -> list[str]:
    """Everything that a document has and should not, or lacks; of its counts, too."""
    top = ElementTree.fromstring(data)
    if top.tag not in ("testsuites", "testsuite"):
        return [f"<{top.tag}> is no root"]
    return list(_problems(top))


def _problems(element: ElementTree.Element) -> Iterator[str]:
    needed, allowed, children = SHAPE[element.tag]
    given = set(element.attrib)
    yield from (f"<{element.tag}> lacks {name}" for name in sorted(set(needed) - given))
    yield from (f"<{element.tag}> has {n}" for n in sorted(given - {*needed, *allowed}))
    if not TIME.fullmatch(element.get("time", "")):
        yield f"<{element.tag}> has time {element.get('time')}"
    if element.tag not in TEXT and (element.text or "").strip():
        yield f"<{element.tag}> has text"
    if element.tag == "testsuite":
        counted = {"tests": "testcase", "failures": "testcase/failure", "errors": "testcase/error",
                   "skipped": "testcase/skipped"}  # fmt: skip
        for name, path in counted.items():
            if int(element.get(name, "0")) != len(element.findall(path)):
                yield f"{name} is {element.get(name)}"
    for child in element:
        if child.tag not in children:
            yield f"<{element.tag}> has <{child.tag}>"
        else:
            yield from _problems(child)
