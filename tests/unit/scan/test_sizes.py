"""The size report: what each layer and package weighs, and what is waste."""

import json

import pytest

from stackyard.scan.sizes import KINDS, LayerSize, shorten, size_lines, size_report
from tests.unit.layers import FOLDER, SITE, distribution, hard, image, link

KIB = 2**10
HEAD = b"\xa7\r\r\n" + bytes(4)


def report(*layers, base=1):
    contents = image(*layers)
    sizes = [
        LayerSize(digest=f"sha256:{n}", compressed=100 * (n + 1), created_by=f"RUN step {n}")
        for n in range(len(layers))
    ]
    found = size_report(contents, sizes, base)
    assert json.loads(json.dumps(found)) == found
    assert all(len(line) <= 100 and line.isprintable() for line in size_lines(found))
    return found


def waste(kind, *layers):
    found = report(*layers)["waste"][kind]
    return found["bytes"], {row["path"]: row["bytes"] for row in found["largest"]}


def pyc(mtime, size):
    return HEAD + mtime.to_bytes(4, "little") + size.to_bytes(4, "little") + b"code"


def test_layers_weigh_what_they_hold_and_the_base_is_told_apart():
    found = report({"a": "12345"}, {"b": "123", "d/c": "1"}, [("b", b"22"), ("s", link("a"))])
    rows = [(x["base"], x["compressed"], x["unpacked"], x["files"]) for x in found["layers"]]
    assert rows == [(True, 100, 5, 1), (False, 200, 4, 2), (False, 300, 2, 2)]
    assert found["image"] == {"compressed": 600, "unpacked": 11, "files": 5}
    assert found["over_base"] == {"compressed": 500, "unpacked": 6, "files": 4}
    assert found["visible"] == 8


def test_as_many_sizes_as_layers_are_asked_for():
    with pytest.raises(ValueError, match=r"longer|shorter"):
        size_report(image({}, {}), [LayerSize(digest="", compressed=0)], 1)


@pytest.mark.parametrize(
    ("entry", "short"),
    [
        ("RUN /bin/bash -euo pipefail -c . /x     && y # buildkit", "RUN . /x && y"),
        ("RUN |2 A=1 B=2 /bin/sh -c make # buildkit", "RUN make"),
        ("/bin/sh -c #(nop)  CMD [\"bash\"]", "CMD [\"bash\"]"),
        ("/bin/sh -c apt-get install x", "apt-get install x"),
        ("COPY a\tb # buildkit", "COPY a b"),
        ("", ""),
        ("RUN " + "x" * 500, "RUN " + "x" * 116 + "..."),
    ],
)  # fmt: skip
def test_a_history_entry_is_one_short_line(entry, short):
    assert shorten(entry) == short


def test_packages_weigh_their_files_and_the_bytecode_of_these():
    files = distribution("big", "1", files={"big/__init__.py": "x" * 1000, "big/t.py": ""})
    extra = {
        f"{SITE}/big/__pycache__/__init__.cpython-311.pyc": pyc(1000, 1000) + b"y" * 500,
        "usr/bin/tool": "x" * 700,
        "var/lib/dpkg/status": "Package: tool\nVersion: 2\nArchitecture: all\n",
        "var/lib/dpkg/info/tool.list": "/usr/bin/tool\n/usr/bin/absent\n",
        "srv/mine": "x" * 10,
    }
    found = report(files | distribution("small", "2") | extra)["packages"]
    first, second = found["python"]["largest"]
    assert (first["name"], second["name"]) == ("big", "small")
    metadata = sum(len(c) for p, c in files.items() if ".dist-info" in p)
    assert first["bytes"] == 1000 + len(pyc(0, 0)) + 500 + metadata
    assert found["debian"]["largest"] == [
        {"name": "tool", "version": "2", "bytes": 700, "files": 1}
    ]
    dpkg = sum(len(extra[p]) for p in extra if "dpkg" in p)
    assert found["unowned"] == {"bytes": 10 + dpkg, "files": 3}


def test_only_the_largest_packages_are_listed_and_all_counted():
    files = {}
    for n in range(30):
        files |= distribution(f"p{n}", "1", files={f"p{n}.py": "x" * 1000 * n})
    found = report(files)["packages"]["python"]
    assert found["packages"] == 30
    assert [row["name"] for row in found["largest"]] == [f"p{n}" for n in range(29, 9, -1)]


# Waste


def test_what_later_layers_delete_or_replace_is_hidden():
    below = {"gone": "1" * 50, "d/in": "1" * 40, "old": "1" * 30, "stays": "1" * 99}
    found = waste("hidden", below, {".wh.gone": "", ".wh.d": "", "old": "2"})
    assert found == (120, {"/gone": 50, "/d/in": 40, "/old": 30})


def test_what_a_hard_link_still_shows_is_not_hidden():
    assert waste("hidden", [("a", b"1" * 50), ("b", hard("a"))], {".wh.a": ""}) == (0, {})


def test_copies_are_counted_once_less_than_there_are():
    big, small = b"x" * 64 * KIB, b"x" * (64 * KIB - 1)
    found = waste("duplicates", [("a", big), ("b", big), ("c", big), ("s", small), ("t", small),
                                 ("h", hard("a")), ("l", link("a"))])  # fmt: skip
    assert found == (2 * 64 * KIB, {"/a": 2 * 64 * KIB})


def test_tests_are_those_of_packages():
    found = waste("tests", {f"{SITE}/p/tests/a.py": "123", f"{SITE}/p/tests/d/b.py": "12",
                            f"{SITE}/test/c.py": "1", "usr/lib/python3.11/test/d.py": "1234",
                            f"{SITE}/p/testing/x.py": "1", f"{SITE}/tests.py": "1",
                            "home/tests/x": "1"})  # fmt: skip
    assert found == (
        10,
        {f"/{SITE}/p/tests": 5, "/usr/lib/python3.11/test": 4, f"/{SITE}/test": 1},
    )


def test_the_innermost_tests_folder_is_named():
    _, named = waste("tests", {f"{SITE}/p/tests/q/tests/a.py": "123"})
    assert named == {f"/{SITE}/p/tests/q/tests": 3}


@pytest.mark.parametrize(
    ("kind", "path", "named"),
    [
        ("caches", "var/cache/apt/x.bin", "var/cache"),
        ("caches", "var/lib/apt/lists/y", "var/lib/apt/lists"),
        ("caches", "root/.cache/pip/z", "root/.cache"),
        ("caches", "opt/conda/pkgs/a/b", "opt/conda/pkgs"),
        ("caches", "tmp/x", "tmp"),
        ("static_libraries", "usr/lib/libx.a", "usr/lib/libx.a"),
        ("headers", f"{SITE}/torch/include/ATen/a.h", f"{SITE}/torch/include"),
        ("headers", "opt/x/y.cuh", "opt/x/y.cuh"),
        ("documents", "usr/share/doc/x/copyright", "usr/share/doc/x"),
        ("documents", "usr/share/locale/de/LC_MESSAGES/x.mo", "usr/share/locale/de"),
        ("documents", "usr/share/man/man1/x.1", "usr/share/man/man1"),
    ],
)
def test_what_can_be_left_out_is_found_by_its_place(kind, path, named):
    assert waste(kind, {path: "123", "usr/bin/x": "1", "usr/lib/liba.so": "1"}) == (
        3,
        {f"/{named}": 3},
    )


def test_nothing_of_a_plain_image_is_waste():
    found = report(
        {"usr/bin/x": "1", "etc/x.conf": "1", f"{SITE}/a/latest.py": "1"}, [("d", FOLDER)]
    )
    assert found["waste"]["any"] == {"bytes": 0, "files": 0}


def test_bytecode_is_waste_where_python_does_not_load_it():
    cache, size = f"{SITE}/__pycache__", len(pyc(0, 0))
    files = [
        (f"{SITE}/good.py", b"12345", 77), (f"{cache}/good.cpython-311.pyc", pyc(77, 5)),
        (f"{SITE}/late.py", b"12345", 78), (f"{cache}/late.cpython-311.pyc", pyc(77, 5)),
        (f"{SITE}/long.py", b"123456", 77), (f"{cache}/long.cpython-311.pyc", pyc(77, 5)),
        (f"{cache}/none.cpython-311.pyc", pyc(77, 5)),
        (f"{SITE}/hashed.py", b"1", 1),
        (f"{cache}/hashed.cpython-311.pyc", HEAD[:4] + b"\1" + bytes(11)),
        (f"{SITE}/alone.pyc", pyc(77, 5)),
        (f"{SITE}/good.pyc", pyc(77, 5)),
    ]  # fmt: skip
    assert waste("bytecode", files) == (4 * size, {f"/{cache}": 3 * size, f"/{SITE}": size})


def test_bytecode_of_a_source_that_a_later_layer_replaced_is_stale():
    below = [("a/m.py", b"12345", 77), ("a/__pycache__/m.cpython-311.pyc", pyc(77, 5))]
    assert waste("bytecode", below, [("a/m.py", b"1234", 99)])[0] == len(pyc(0, 0))


def test_what_is_waste_for_two_reasons_is_counted_once():
    copies = {f"{SITE}/p/tests/{n}.h": "x" * 64 * KIB for n in "ab"}
    found = report(copies)["waste"]
    assert found["any"] == {"bytes": 2 * 64 * KIB, "files": 2}
    assert found["tests"]["bytes"] == found["headers"]["bytes"] == 2 * 64 * KIB
    assert found["duplicates"]["bytes"] == 64 * KIB


def test_odd_names_are_told_as_text():
    found = report({"tmp/a\x1b[31m\udcff": "123"}, {".wh.tmp": ""})["waste"]["hidden"]["largest"]
    assert found[0]["path"] == "/tmp/a\\x1b[31m\\udcff"


def test_the_lines_say_every_kind_of_waste_and_every_layer():
    lines = size_lines(report({"tmp/" + "long/" * 40 + "x": "1" * 200_000}, {".wh.tmp": ""}))
    text = "\n".join(lines)
    assert all(meaning in text for meaning in KINDS.values())
    assert "base: RUN step 0" in text
    assert any("0.2 MB" in line and line.endswith("long/x") for line in lines)
