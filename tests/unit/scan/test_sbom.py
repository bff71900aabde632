"""The bill of materials: valid, complete, the same bytes for the same image."""

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from stackyard.definitions.lock import Locked
from stackyard.scan.sbom import Described, licence_expression, licences, required, sbom
from tests.unit.layers import SITE, distribution, image
from tests.unit.scan.test_installed import STATUS, of, one

ID = "sha256:" + "1" * 64
SUBJECT = Described(
    name="stackyard/fairseq",
    version="cpu",
    id=ID,
    base="registry.example:5000/debian:12@sha256:" + "2" * 64,
    base_digest="sha256:" + "2" * 64,
    created="2026-11-21T22:55:10.972566086Z",
)
SYSTEM = {
    "etc/os-release": 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12"\n',
    "var/lib/dpkg/status": STATUS,
}


def bill(*layers, locks=(), subject=SUBJECT):
    """The bill of an image, after the library has found it valid."""
    text = sbom(image(*layers), subject, locks)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert wrong is None, str(wrong.data.message)
    return json.loads(text)


def component(document, name):
    found = [c for c in document["components"] if c["name"] == name]
    assert len(found) == 1, found
    return found[0]


def facts(found):
    return {p["name"].removeprefix("stackyard:"): p["value"] for p in found.get("properties", [])}


def depends(document):
    return {d["ref"]: d.get("dependsOn", []) for d in document["dependencies"]}


def test_the_document_is_about_the_image():
    found = bill(SYSTEM)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    about = found["metadata"]["component"]
    assert (about["type"], about["name"], about["version"]) == ("container", SUBJECT.name, "cpu")
    assert about["hashes"] == [{"alg": "SHA-256", "content": "1" * 64}]
    assert found["metadata"]["timestamp"] == "2026-11-21T22:55:10.972566+00:00"


def test_the_system_its_packages_and_the_base_are_in_it():
    found = bill(SYSTEM)
    system = component(found, "debian")
    assert (system["type"], system["version"]) == ("operating-system", "12")
    base = component(found, "registry.example:5000/debian")
    assert (base["version"], base["hashes"][0]["content"]) == ("12", "2" * 64)
    assert [c["purl"] for c in found["components"] if "purl" in c] == [
        "pkg:deb/debian/Odd@1:2~rc1?distro=debian-12",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u4?arch=amd64&distro=debian-12&upstream=glibc",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u4?arch=i386&distro=debian-12",
    ]


@pytest.mark.parametrize(
    ("source", "upstream"),
    [
        ("glibc", "glibc"),
        ("gcc-12 (12.2.0-14+deb12u1)", "gcc-12@12.2.0-14+deb12u1"),
        ("odd name", None),
        ("", None),
    ],
)
def test_a_debian_package_names_the_source_that_advisories_are_about(source, upstream):
    head = "Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
    status = f"{head}Source: {source}"
    found = component(bill({**SYSTEM, "var/lib/dpkg/status": status}), "a")
    assert PackageURL.from_string(found["purl"]).qualifiers.get("upstream") == upstream


def test_an_image_of_nothing_has_a_bill():
    subject = Described(name="x", version="1", id=ID, created=SUBJECT.created)
    assert "components" not in bill({}, subject=subject)


@pytest.mark.parametrize(
    ("base", "name", "version"),
    [("a/b", "a/b", None), ("h:5000/b", "h:5000/b", None), ("h:5000/b:1", "h:5000/b", "1"),
     ("b@sha256:" + "3" * 64, "b", None)],
)  # fmt: skip
def test_a_base_is_named_without_its_tag(base, name, version):
    subject = Described(name="x", version="1", id=ID, created=SUBJECT.created, base=base)
    assert component(bill({}, subject=subject), name).get("version") == version


def test_the_same_image_gives_the_same_bytes():
    files = SYSTEM | distribution("a", "1", Requires_Dist=["b"]) | distribution("b", "2")
    backwards = dict(reversed(files.items()))
    locks = [Locked(name="a", version="1", hashes=("sha256:" + d * 64,)) for d in "ab"]
    texts = {sbom(image(files), SUBJECT, found) for found in (locks, locks[::-1], iter(locks))}
    texts.add(sbom(image(backwards), SUBJECT, locks))
    assert len(texts) == 1


def test_another_image_has_another_serial_number():
    other = Described(name="x", version="1", id="sha256:" + "9" * 64, created=SUBJECT.created)
    first, second = bill({}), bill({}, subject=other)
    assert first["serialNumber"] != second["serialNumber"]


@pytest.mark.parametrize(
    "wrong", [{"id": "1" * 64}, {"created": "2026-11-21T22:55:10"}, {"created": "yesterday"}]
)
def test_a_malformed_subject_is_refused(wrong):
    subject = Described(
        **{"name": "x", "version": "1", "id": ID, "created": SUBJECT.created} | wrong
    )
    with pytest.raises(ValueError, match="is not"):
        sbom(image({}), subject, ())


# Python distributions


def test_a_distribution_is_named_as_the_index_names_it():
    found = component(bill(distribution("Foo_Bar", "1.0+cpu")), "Foo_Bar")
    assert found["purl"] == "pkg:pypi/foo-bar@1.0%2Bcpu"
    assert facts(found) == {"folder": f"/{SITE}", "installer": "uv", "layer": "0"}


def test_hashes_are_the_locks_where_it_has_that_version():
    locks = [
        Locked(name="foo", version="1.0.0", hashes=("sha256:" + "a" * 64,)),
        Locked(name="foo", version="2", hashes=("sha256:" + "b" * 64,)),
        Locked(name="bar", version="1", hashes=("sha256:" + "d" * 64, "sha256:" + "c" * 64)),
    ]
    found = bill(distribution("Foo", "1.0.0") | distribution("bar", "1") | distribution("baz", "1"),
                 locks=locks)  # fmt: skip
    hashes = {c["name"]: [h["content"][0] for h in c.get("hashes", [])] for c in found["components"]
              if c["type"] == "library"}  # fmt: skip
    assert hashes == {"Foo": ["a"], "bar": ["c", "d"], "baz": []}
    assert "several files" in facts(component(found, "bar"))["hashes"]
    assert "hashes" not in facts(component(found, "Foo"))


def test_what_was_built_here_has_the_hash_of_its_source_only_as_that():
    url = '{"url":"file:///mnt/foo-1-py3-none-any.whl","archive_info":{}}'
    locks = [Locked(name="foo", version="1", hashes=("sha256:" + "a" * 64,))]
    found = component(bill(distribution("foo", "1", direct_url=url), locks=locks), "foo")
    assert "hashes" not in found
    assert facts(found)["origin"] == "wheel: foo-1-py3-none-any.whl"
    assert facts(found)["source-hashes"] == "sha256:" + "a" * 64


def test_an_install_from_git_says_repository_and_commit():
    url = '{"url":"https://me:word@git.org/foo","vcs_info":{"vcs":"git","commit_id":"abc1"}}'
    text = json.dumps(found := component(bill(distribution("foo", "1", direct_url=url)), "foo"))
    assert found["purl"] == "pkg:pypi/foo@1?vcs_url=git%2Bhttps://git.org/foo%40abc1"
    assert found["externalReferences"] == [{"type": "vcs", "url": "https://git.org/foo"}]
    assert "word" not in text


def test_a_local_wheel_keeps_its_hash():
    url = f'{{"url":"file:///a b.whl","archive_info":{{"hashes":{{"sha256":"{"e" * 64}"}}}}}}'
    (reference,) = component(bill(distribution("foo", "1", direct_url=url)), "foo")[
        "externalReferences"
    ]
    assert (reference["type"], reference["hashes"][0]["content"]) == ("distribution", "e" * 64)


def test_an_editable_install_says_so():
    url = '{"url":"file:///srv/code/foo","dir_info":{"editable":true}}'
    found = bill(distribution("foo", "1", direct_url=url)
                 | {"srv/code/foo/foo.egg-info/PKG-INFO": "Name: foo\nVersion: 1\n"})  # fmt: skip
    said = facts(component(found, "foo"))
    assert (said["origin"], said["editable"]) == ("folder: foo", "true")


def test_the_same_version_twice_is_two_components_told_apart():
    found = bill(distribution("foo", "1") | distribution("foo", "1", site="opt/site-packages"))
    pair = [c for c in found["components"] if c["name"] == "foo"]
    assert len({c["bom-ref"] for c in pair}) == 2
    assert len({c["purl"] for c in pair}) == 1


def test_what_is_inside_a_distribution_is_its_component():
    inner = distribution("inner", "3", site=f"{SITE}/outer/_vendor")
    files = {path.removeprefix(f"{SITE}/"): content for path, content in inner.items()}
    found = bill(distribution("outer", "1", files=files))
    outer = component(found, "outer")
    assert [c["purl"] for c in outer["components"]] == ["pkg:pypi/inner@3"]
    assert depends(found)["pkg:pypi/outer@1"] == ["pkg:pypi/inner@3"]


def test_odd_names_and_broken_fields_still_make_a_valid_bill():
    bill(
        distribution("we ird\u00e9", "not a version!", License="\x07", Home_page="https://[x",
                     Requires_Dist=["!!", "we-ird>1"], Project_URL=["Homepage, https://x.org/ y"])
        | {"opt/\udcff/a-1.dist-info/METADATA": b"Name: \xff\xfe\n", ".dist-info/METADATA": "",
           "usr/lib/python3.11/site-packages/-1.dist-info/METADATA": "Version: 1\n",
           "var/lib/dpkg/status": "Package: a b\nVersion: 1 2\nArchitecture: ?&\n",
           "etc/os-release": "ID=We ird\nVERSION_ID=\n"}
    )  # fmt: skip


# Licences


def declared(**fields):
    found = licences(one(distribution("foo", "1", **fields)))
    return [getattr(x, "id", None) or getattr(x, "name", None) or f"({x.value})" for x in found]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"License_Expression": "MIT"}, ["MIT"]),
        ({"License_Expression": "MIT OR Apache-2.0"}, ["(MIT OR Apache-2.0)"]),
        ({"License": "bsd-3-clause"}, ["BSD-3-Clause"]),
        ({"License": "BSD"}, ["BSD"]),
        ({"License": "MIT and mine"}, ["MIT and mine"]),
        ({"License": "UNKNOWN"}, []),
        ({}, []),
        ({"Classifier": ["License :: OSI Approved", "License :: OSI Approved :: MIT License"]},
         ["MIT License"]),
        ({"Classifier": ["License :: A :: ISC", "License :: B :: mine AND yours"]},
         ["ISC", "mine AND yours"]),
        ({"License": "My words\n        all of them", "Classifier": "License :: X :: Yours"},
         ["Yours"]),
        ({"License": "My words\n        all of them"}, ["My words"]),
        ({"License": "x" * 500}, ["x" * 100]),
    ],
)  # fmt: skip
def test_a_licence_is_spdx_where_it_is_valid_and_else_a_name(fields, found):
    assert declared(**fields) == found
    bill(distribution("foo", "1", **fields))


# Relations


def test_the_image_depends_on_all_and_packages_on_what_they_require():
    a = distribution("a", "1", Requires_Dist=["B_b>=1", "absent", "c; extra=='x'", "a[x]"])
    found = bill(SYSTEM | a | distribution("b-b", "2") | distribution("c", "3"))
    on = depends(found)
    assert on[f"image:{ID}"] == sorted(c["bom-ref"] for c in found["components"])
    assert on["pkg:pypi/a@1"] == ["pkg:pypi/b-b@2"]
    assert on["pkg:pypi/c@3"] == []


@pytest.mark.parametrize(
    ("marker", "there"),
    [
        ("python_version == '3.11'", True),
        ("python_version < '3.11'", False),
        ("platform_machine == 'aarch64'", True),
        ("sys_platform == 'win32'", False),
        ("platform_release > '1'", False),
    ],
)
def test_markers_are_the_images_not_this_machines(marker, there):
    found = of(distribution("a", "1", Requires_Dist=f"b; {marker}"), distribution("b", "2"))
    a, b = found.distributions
    assert required(a, found, "arm64") == ([b] if there else [])


def test_of_two_with_one_name_the_one_beside_it_is_required():
    other = "opt/python3.11/site-packages"
    found = of(distribution("a", "1", Requires_Dist="b"), distribution("b", "1"),
               distribution("b", "2", site=other))  # fmt: skip
    a, first, _ = found.distributions
    assert required(a, found, "amd64") == [first]


@pytest.mark.parametrize(
    ("names", "expression"),
    [
        (["fairseq"], "MIT"),
        (["fairseq", "Torch"], "(BSD-2-Clause OR Apache-2.0) AND MIT"),
        (["fairseq", "own"], ""),  # no licence that SPDX knows
        (["fairseq", "silent"], ""),
        (["fairseq", "missing"], ""),
    ],
)
def test_licences_of_packages_are_one_expression_or_nothing(names, expression):
    there = image(
        {
            **SYSTEM,
            **distribution("fairseq", "1", License="MIT"),
            **distribution("torch", "2", License_Expression="BSD-2-Clause OR Apache-2.0"),
            **distribution("own", "1", License="our own terms"),
            **distribution("silent", "1"),
        }
    )
    assert licence_expression(there, names) == expression
