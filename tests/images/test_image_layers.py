"""No layer, history or configuration of an image holds what belongs to the build's machine."""

from __future__ import annotations

import json
import re

import pytest

from stackyard.scan.secrets.gate import scan_config
from stackyard.scan.secrets.rules import SECRETS, TIDINESS
from tests.traces import traces

RULES = {**SECRETS, **TIDINESS}
pytestmark = pytest.mark.engine


@pytest.mark.parametrize("rule", RULES)
def test_no_layer_holds(saved, rule):
    found = saved.of_rule(rule)
    assert not found, f"{RULES[rule]}:\n" + "\n".join(found)


def test_the_layers_that_were_scanned_are_those_of_the_image(built, saved):
    assert tuple(saved.config["rootfs"]["diff_ids"]) == built.info.layers
    assert len(saved.layers) == len(built.info.layers)


def test_the_history_tells_nothing_of_the_caller(engine, built, caller):
    steps = engine.history(built.info.id)
    text = "\n".join(f"{step['CreatedBy']} {step['Comment']}" for step in steps)
    assert "install_locked /mnt/stack.lock" in text
    assert traces(caller, text) == []


def test_the_saved_configuration_tells_nothing_of_the_caller(saved, caller):
    text = json.dumps(dict(saved.config), ensure_ascii=False)
    assert "stackyard.recipe" in text
    assert traces(caller, text) == []


def test_the_saved_configuration_passes_the_gate(saved, caller, allowed):
    assert [str(finding) for finding in scan_config(saved.config, caller, allowed)] == []


def test_build_mounts_left_nothing_behind(host, said):
    assert said("ls -A /mnt") == ""
    assert not host.file("/run/secrets").exists


def test_the_machine_id_is_empty(host):
    assert host.file("/etc/machine-id").size == 0


def test_the_ssh_folder_holds_configuration_only(said):
    names = {"moduli", "ssh_config", "ssh_config.d", "sshd_config", "sshd_config.d"}
    assert set(said("ls -A /etc/ssh").split()) == names


def test_package_sources_are_debians_own_or_none(said):
    text = said("cat /etc/apt/sources.list $(find /etc/apt/sources.list.d -type f)")
    hosts = re.findall(r"^[^#]*?://([^/\s]+)", text, flags=re.MULTILINE)
    assert [host for host in hosts if host.split(".")[-2] != "debian"] == []


def test_no_password_for_a_package_source_is_left(said):
    assert said("ls -A /etc/apt/auth.conf.d") == ""
    assert said("find / -xdev -name .netrc -o -xdev -name auth.conf") == ""
