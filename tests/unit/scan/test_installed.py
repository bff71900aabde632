"""What says of itself that it is installed, read from an image's metadata."""

import pytest

from stackyard.scan.installed import installed, os_release, public_url, source_of
from tests.unit.layers import SITE, distribution, hard, image, link

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Source: glibc
Version: 2.36-9+deb12u4
Homepage: https://www.gnu.org/software/libc/
Description: libraries
 Package: not-a-field
 .
 more

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: half
Status: install ok half-installed
Version: 1

Package: no-version
Status: install ok installed

Version: 3
Status: install ok installed
\t
package: Odd
status: install ok installed
version:1:2~rc1


Package: libc6
Status: install ok installed
Architecture: i386
Version: 2.36-9+deb12u4
"""


def of(*layers):
    return installed(image(*layers))


def one(*layers):
    (found,) = of(*layers).distributions
    return found


# Debian


def test_installed_stanzas_are_packages_and_no_others():
    found = of({"var/lib/dpkg/status": STATUS}).packages
    assert [(p.name, p.version, p.architecture) for p in found] == [
        ("Odd", "1:2~rc1", ""),
        ("libc6", "2.36-9+deb12u4", "amd64"),
        ("libc6", "2.36-9+deb12u4", "i386"),
    ]
    assert (found[1].source, found[1].home) == ("glibc", "https://www.gnu.org/software/libc/")


def test_images_without_a_status_say_packages_in_files_of_their_own():
    found = of({"var/lib/dpkg/status.d/tzdata": "Package: tzdata\nVersion: 2024a\n"})
    assert [(p.name, p.version) for p in found.packages] == [("tzdata", "2024a")]


def test_a_status_of_a_lower_layer_is_not_read():
    upper = STATUS.replace("deb12u4", "deb12u5")
    found = of({"var/lib/dpkg/status": STATUS}, {"var/lib/dpkg/status": upper}).packages
    assert {p.version for p in found} == {"2.36-9+deb12u5", "1:2~rc1"}


def test_os_release_is_read_through_its_link_and_unquoted():
    text = "# x\nID=debian\nPRETTY_NAME=\"Debian 'x' 12\"\nVERSION_ID='12'\nBAD=\"open\nnothing\n"
    contents = image(
        [("usr/lib/os-release", text), ("etc/os-release", link("../usr/lib/os-release"))]
    )
    assert os_release(contents) == {"ID": "debian", "PRETTY_NAME": "Debian 'x' 12",
                                    "VERSION_ID": "12", "BAD": "open"}  # fmt: skip


# Python


def test_a_distribution_says_what_it_is():
    found = one(
        {},
        distribution(
            "Foo-Bar", "1.0", License_Expression="MIT", Home_page="https://foo.org/",
            Project_URL=["Source Code, https://user:word@foo.org/git", "Docs, https://foo.org/d"],
            Requires_Dist=["numpy>=2", "six ; extra == 'x'"],
            Classifier=["License :: OSI Approved :: MIT License", "Topic :: Text"],
        ),
    )  # fmt: skip
    assert (found.name, found.key, found.version, found.layer) == ("Foo-Bar", "foo-bar", "1.0", 1)
    assert (found.expression, found.classifiers) == ("MIT", ("MIT License",))
    assert (found.home, found.source) == ("https://foo.org/", "https://foo.org/git")
    assert found.requires == ("numpy>=2", "six ; extra == 'x'")
    assert (found.installer, found.folder) == ("uv", SITE)
    assert f"{SITE}/Foo_Bar/__init__.py" in found.record


@pytest.mark.parametrize("label", ["source", "Source_Code", "Repository", "GitHub", "source-code"])
def test_the_address_of_the_source_has_one_of_several_labels(label):
    found = one(
        distribution("foo", "1", Project_URL=[f"{label}, https://foo.org/git", "X, https://x"])
    )
    assert found.source == "https://foo.org/git"


def test_a_field_that_metadata_may_not_have_twice_is_left_out():
    found = one(distribution("foo", "1", Home_page=["https://a.org", "https://b.org"]))
    assert (found.name, found.home) == ("foo", "")


def test_without_a_record_nothing_is_its_file():
    files = distribution("foo", "1.0")
    del files[f"{SITE}/foo-1.0.dist-info/RECORD"]
    found = of(files)
    assert found.distributions[0].record == ()
    assert found.owners == {}


def test_without_metadata_the_name_of_the_folder_tells():
    found = one({f"{SITE}/foo_bar-1.0.post1.dist-info/RECORD": "foo_bar.py,,\n"})
    assert (found.name, found.version) == ("foo_bar", "1.0.post1")


@pytest.mark.parametrize("name", ["x-1-py3.11.egg-info", "x-1-py3.11.egg-info/PKG-INFO"])
def test_an_egg_info_is_a_distribution(name):
    found = one({f"usr/lib/python3/dist-packages/{name}": "Name: x\nVersion: 1\n"})
    assert (found.name, found.version) == ("x", "1")


def test_an_egg_info_beside_sources_is_none():
    assert of({"srv/code/x.egg-info/PKG-INFO": "Name: x\nVersion: 1\n"}).distributions == ()


def test_two_versions_of_one_package_are_two():
    found = of(distribution("foo", "1.0"), distribution("foo", "2.0", site="opt/site-packages"))
    assert [(d.version, d.folder) for d in found.distributions] == [
        ("1.0", SITE),
        ("2.0", "opt/site-packages"),
    ]


def test_what_a_distribution_has_inside_it_is_told_apart():
    inner = distribution("inner", "3", site=f"{SITE}/outer/_vendor")
    names = [path.removeprefix(f"{SITE}/") for path in inner]
    outer = distribution("outer", "1", files={name: inner[f"{SITE}/{name}"] for name in names})
    found = of(outer)
    assert [(d.name, d.owner) for d in found.distributions] == [
        ("inner", f"{SITE}/outer-1.dist-info"),
        ("outer", ""),
    ]
    # Its files weigh on the one that brings them.
    assert found.owners[f"{SITE}/outer/_vendor/inner/__init__.py"].name == "outer"


def test_a_folder_that_is_no_ones_holds_distributions_of_their_own():
    found = one(distribution("foo", "1.0", site="srv/target"))
    assert (found.owner, found.folder) == ("", "srv/target")


@pytest.mark.parametrize(
    ("text", "kind", "address", "commit", "editable"),
    [
        ('{"url":"file:///mnt/w/foo-1-py3-none-any.whl","archive_info":{}}', "wheel",
         "foo-1-py3-none-any.whl", "", False),
        ('{"url":"file:///home/me/foo/","dir_info":{"editable":true}}', "folder", "foo", "", True),
        ('{"url":"file:///home/me/foo","dir_info":{}}', "folder", "foo", "", False),
        ('{"url":"https://me:word@git.org/foo.git?t=1","vcs_info":{"vcs":"git","commit_id":"abc"}}',
         "git", "https://git.org/foo.git", "abc", False),
        ('{"url":"https://x.org/foo-1.tar.gz","archive_info":{"hash":"sha256=zz"}}', "file",
         "https://x.org/foo-1.tar.gz", "", False),
    ],
)  # fmt: skip
def test_what_came_from_no_index_says_from_where_without_secrets(
    text, kind, address, commit, editable
):
    origin = one(distribution("foo", "1", direct_url=text)).origin
    assert (origin.kind, origin.address, origin.commit, origin.editable, origin.sha256) == (
        kind, address, commit, editable, "",
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": 1}', '{"url":"x","dir_info":1}',
                                  '{"url":"https://x.org/a.whl"}',
                                  '{"url":"https://x.org/a","dir_info":{}}',
                                  '{"url":"https://[/a.whl","archive_info":{}}'])  # fmt: skip
def test_an_origin_that_cannot_be_read_is_none(text):
    assert one(distribution("foo", "1", direct_url=text)).origin is None


def test_an_archives_hash_is_kept_in_both_spellings():
    digest = "a" * 64
    for archive in (f'{{"hashes":{{"sha256":"{digest}"}}}}', f'{{"hash":"sha256={digest}"}}'):
        text = f'{{"url":"file:///foo.whl","archive_info":{archive}}}'
        assert one(distribution("foo", "1", direct_url=text)).origin.sha256 == digest


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://a.org/x#y", "https://a.org/x"),
        ("https://u:p@a.org/?token=1", "https://a.org/"),
        ("UNKNOWN", ""),
        ("ftp://a.org", ""),
        ("https://a.org/<x>", ""),
        ("https://[bad", ""),
        ("javascript:alert(1)", ""),
    ],
)
def test_only_web_addresses_without_secrets_are_public(url, public):
    assert public_url(url) == public


# Whose a file is


def test_bytecode_that_nobody_lists_is_its_sources():
    files = distribution("foo", "1")
    cache = f"{SITE}/foo/__pycache__"
    extra = {f"{cache}/__init__.cpython-311.pyc": "x", f"{cache}/other.cpython-311.pyc": "x"}
    owners = of(files | extra).owners
    assert owners[f"{cache}/__init__.cpython-311.pyc"].name == "foo"
    assert f"{cache}/other.cpython-311.pyc" not in owners


@pytest.mark.parametrize(
    ("bytecode", "source"),
    [
        ("a/__pycache__/m.cpython-311.pyc", "a/m.py"),
        ("a/__pycache__/m.cpython-311.opt-1.pyc", "a/m.py"),
        ("__pycache__/m.v2.pypy310-pp73.pyc", "m.v2.py"),
        ("a/m.pyc", "a/m.py"),
    ],
)
def test_the_source_of_bytecode(bytecode, source):
    bytecode = bytecode if bytecode.startswith("a/") else f"a/{bytecode}"
    source = source if source.startswith("a/") else f"a/{source}"
    assert source_of(bytecode) == source


def test_a_debian_packages_files_are_found_through_links_of_folders():
    found = of(
        [
            ("lib", link("usr/lib")),
            ("usr/lib/x.so", b"123"),
            ("usr/lib/y.so", hard("usr/lib/x.so")),
            ("var/lib/dpkg/status", STATUS),
            ("var/lib/dpkg/info/libc6:amd64.list", "/.\n/lib/x.so\n/usr/lib/y.so\n/not/there\n"),
        ]
    )  # fmt: skip
    assert {path: (p.name, p.architecture) for path, p in found.owners.items()} == {
        "usr/lib/x.so": ("libc6", "amd64"),
        "usr/lib/y.so": ("libc6", "amd64"),
    }


@pytest.mark.parametrize(
    ("site", "python"),
    [(SITE, "3.11"), ("usr/lib/python3/dist-packages", "3.12"), ("opt/site-packages", "3.12")],
)
def test_the_python_that_a_distribution_is_for(site, python):
    files = distribution("foo", "1", site=site)
    found = of(files | {"usr/bin/python3.12": "x", "usr/bin/python3.9": "x"})
    assert found.python(found.distributions[0]) == python
