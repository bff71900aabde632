"""What follows from an image's layers alone."""

import hashlib

from tests.unit import reports


def info(*layers):
    return reports.dataclasses.replace(reports.INFO, layers=layers)


def test_the_chain_of_layers_is_what_oci_defines():
    one, two, three = (f"sha256:{letter * 64}" for letter in "abc")
    first = hashlib.sha256(f"{one} {two}".encode()).hexdigest()
    both = hashlib.sha256(f"sha256:{first} {three}".encode()).hexdigest()
    assert (info().chain, info(one).chain) == ("", one)
    assert info(one, two, three).chain == f"sha256:{both}"
    assert info(two, one, three).chain != f"sha256:{both}"
