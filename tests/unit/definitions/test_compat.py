"""Whether a fix applies: versions by PEP 440, Python, device, and the reason when not."""

import pytest

from stackyard.definitions import compat
from tests.unit import samples


@pytest.mark.parametrize("specifier", ["==1.2", ">=1,<2", "~=1.2", "", "==1.*"])
def test_a_pep_440_specifier_is_no_problem(specifier):
    assert compat.specifier_problem(specifier) == ""


@pytest.mark.parametrize("specifier", ["1.2", "=>1", "== one"])
def test_another_specifier_is_named(specifier):
    assert compat.specifier_problem(specifier) == f"Invalid specifier: {specifier!r}"


@pytest.mark.parametrize("version", ["1", "1.2.3", "2.10.0a0+nv25.12", "1.0rc1"])
def test_a_pep_440_version_is_no_problem(version):
    assert compat.version_problem(version) == ""


@pytest.mark.parametrize("version", ["==1.2", "latest", "1.*"])
def test_another_version_is_named(version):
    assert compat.version_problem(version) == f"Invalid version: {version!r}"


def test_a_version_or_specifier_of_thousands_of_digits_is_refused_and_not_computed():
    assert compat.version_problem("9" * 5000) == "it has more than 200 characters"
    assert compat.specifier_problem("==" + "9" * 5000) == "it has more than 200 characters"


@pytest.mark.parametrize("version", [" 1.0", "1.0\n"])
def test_a_version_has_no_space_around_it(version):
    assert compat.version_problem(version) == f"there is space around it: {version!r}"


def test_a_fix_does_not_apply_to_what_is_no_version():
    assert compat.why_not(samples.fix(), {"alpha": "new"}) == "alpha new is not ==1.2.0"


@pytest.mark.parametrize(
    ("version", "specifier", "answer"),
    [
        ("1.10", ">1.9", True),
        ("1.10", "==1.1", False),
        ("2.10.0a0+nv25.12", ">=2.9", True),
        ("2.10.0a0+nv25.12", ">=2.10", False),
        ("2.13.0+cpu", "==2.13.0", True),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_with_pre_releases_and_local_versions(version, specifier, answer):
    assert compat.satisfies(version, specifier) is answer


@pytest.mark.parametrize(
    ("changes", "versions", "where", "reason"),
    [
        ({}, {"alpha": "1.2.0"}, {}, ""),
        ({}, {}, {}, "alpha is not installed"),
        ({}, {"alpha": "1.3.0"}, {}, "alpha 1.3.0 is not ==1.2.0"),
        ({"versions": {"Al_Pha": ">1"}}, {"al-pha": "2"}, {}, ""),
        ({"versions": {}}, {}, {}, ""),
        ({"versions": {"alpha": ">1", "beta": "<3"}}, {"alpha": "2", "beta": "3"}, {},
         "beta 3 is not <3"),
        ({"python": ">=3.12"}, {"alpha": "1.2.0"}, {"python": "3.11"}, "Python 3.11 is not >=3.12"),
        ({"python": ">=3.12"}, {"alpha": "1.2.0"}, {"python": "3.12"}, ""),
        ({"python": ">=3.12"}, {"alpha": "1.2.0"}, {}, ""),
        ({"devices": ("cpu",)}, {"alpha": "1.2.0"}, {"device": "cuda"}, "only for cpu"),
        ({"devices": ("cpu",)}, {"alpha": "1.2.0"}, {"device": "cpu"}, ""),
        ({"devices": ("cpu",)}, {"alpha": "1.2.0"}, {}, ""),
    ],
)  # fmt: skip
def test_the_first_reason_against_a_fix_is_given(changes, versions, where, reason):
    assert compat.why_not(samples.fix(**changes), versions, **where) == reason
