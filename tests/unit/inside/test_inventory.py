"""What an image says of itself: distributions and Debian packages."""

import json

from stackyard.inside import inventory

STATUS = """\
Package: python3
Status: install ok installed
Architecture: amd64
Version: 3.11.2-1+b1
Description: interpreter
 Version: not this one

Package: gone
Status: deinstall ok config-files
Version: 1

Package: 0ad
Status: hold ok installed
Version: 2
"""


def test_installed_packages_are_read_and_removed_ones_are_not():
    assert inventory.debian_packages(STATUS) == {"0ad": "2", "python3": "3.11.2-1+b1"}
    assert inventory.debian_packages("") == {}


def test_distributions_are_named_as_indexes_compare_them():
    found = inventory.distributions()
    assert {"pytest", "types-pyyaml"} <= set(found)


def test_it_prints_one_line_of_json_also_without_dpkg(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(inventory, "STATUS", tmp_path / "status")
    inventory.main()
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["debian"] == {}
