"""What differs between two images, path by path, with the package that has it."""

import io
import tarfile

import pytest

from stackyard.scan.contents import LayerReader, merge
from stackyard.scan.difference import difference_lines, differences, setting_differences
from stackyard.scan.installed import installed
from tests.unit.layers import Forward, distribution, hard, image, link

STATUS = "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n"
FILES = {
    "usr": ("directory", ""),
    "usr/a": "one",
    "usr/b": "two",
    "usr/l": link("a"),
    "usr/lib/libc.so": "code",
    "var/lib/dpkg/status": STATUS,
    "var/lib/dpkg/info/libc6:amd64.list": "/usr/lib/libc.so\n",
    **distribution("torch", "2.13.0", files={"torch/__init__.py": "import os\n"}),
}
TORCH = "usr/lib/python3.11/site-packages/torch/__init__.py"


def against(*layers):
    """The differences of an image with these layers: path, what, package."""
    found = differences(installed(image(FILES)), installed(image(*layers)))
    return [(one.path, *one.what, one.package) for one in found]


def test_the_same_files_do_not_differ_whatever_their_layers():
    assert against(FILES) == []
    one, two = dict(list(FILES.items())[:3]), dict(list(FILES.items())[3:])
    assert against(one, two) == []
    assert (
        against({**FILES, "usr/a": "other", "usr/x": "x"}, {"usr/a": "one", "usr/.wh.x": ""}) == []
    )


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"usr/a": "another"}, ("/usr/a", "content", "")),
        ({"usr/l": link("b")}, ("/usr/l", "link", "")),
        ({"usr/l": "a file"}, ("/usr/l", "kind", "")),
        ({"usr/new": "x"}, ("/usr/new", "added", "")),
        ({"usr/lib/libc.so": "other"}, ("/usr/lib/libc.so", "content", "libc6 2.36-9 (Debian)")),
        ({TORCH: "import sys\n"}, (f"/{TORCH}", "content", "torch 2.13.0 (Python)")),
    ],
)  # fmt: skip
def test_each_difference_is_named_with_its_package(change, found):
    assert against({**FILES, **change}) == [found]


def test_a_file_that_is_missing_is_named_with_the_package_that_had_it():
    left = {path: content for path, content in FILES.items() if path != "usr/lib/libc.so"}
    assert against(left) == [("/usr/lib/libc.so", "missing", "libc6 2.36-9 (Debian)")]


def one_file(**changes):
    """An image of one file with these facts, as a tar's member has them."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("usr/a")
        for name, value in {"mode": 0o644, "mtime": 1000, **changes}.items():
            setattr(member, name, value)
        archive.addfile(member)
    return installed(merge([LayerReader(0).read(Forward(made.getvalue()))]))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"mode": 0o4755}, "mode"),
        ({"uid": 7}, "owner"),
        ({"gid": 7}, "owner"),
        ({"mtime": 1001}, "time"),
        ({"pax_headers": {"SCHILY.xattr.security.capability": "x"}}, "attributes"),
    ],
)
def test_mode_owner_time_and_attributes_count(changes, what):
    (found,) = differences(one_file(), one_file(**changes))
    assert found.what == (what,)
    assert differences(one_file(**changes), one_file(**changes)) == ()


def test_the_numbers_of_a_device_count():
    kind = tarfile.CHRTYPE
    one, other = (one_file(type=kind, devmajor=1, devminor=minor) for minor in (3, 5))
    assert [found.what for found in differences(one, other)] == [("link",)]


def test_of_names_that_share_a_file_any_may_come_first():
    one = image([("a", "same"), ("b", hard("a"))])
    other = image([("b", "same"), ("a", hard("b"))])
    assert differences(installed(one), installed(other)) == ()
    third = image([("b", "other"), ("a", hard("b"))])
    found = differences(installed(one), installed(third))
    assert [(one.path, one.what) for one in found] == [("/a", ("content",)), ("/b", ("content",))]


def test_settings_count_and_labels_do_not():
    one = {"config": {"Env": ["A=1"], "Labels": {"a": "1"}, "Cmd": None}}
    assert setting_differences(one, {"config": {"Env": ["A=1"], "Labels": {"a": "2"}}}) == ()
    (found,) = setting_differences(one, {"config": {"Env": ["A=2"]}})
    assert (found.path, found.what) == ("configuration Env", ("content",))


def test_lines_are_by_package_and_few_of_each():
    many = {f"usr/new{number:02}": "x" for number in range(14)}
    found = differences(
        installed(image(FILES)), installed(image({**FILES, **many, "usr/lib/libc.so": "other"}))
    )
    lines = difference_lines(found)
    assert lines[0] == "of no package: 14 of 15 differences"
    assert lines[1] == "  /usr/new00: added" and lines[13] == "  and 2 more"
    assert lines[14:] == [
        "libc6 2.36-9 (Debian): 1 of 15 differences", "  /usr/lib/libc.so: content",
    ]  # fmt: skip
