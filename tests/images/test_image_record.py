"""What an image says about itself is what was planned: labels, environment, first process."""

from __future__ import annotations

import pytest

from stackyard.build import packages, recipe
from stackyard.mesh.node import NODE_PROGRAM
from tests.shared import until

pytestmark = pytest.mark.engine
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def test_the_labels_are_the_plans_and_the_packages_of_its_base(built):
    found = dict(built.info.labels)
    assert packages.reference(found.pop(recipe.PACKAGES_LABEL)) == built.plan.packages
    assert found == dict(built.plan.labels)


def test_the_image_is_known_by_the_plans_name(built):
    assert built.plan.tag in built.info.tags


def test_the_environment_is_the_catalogs(built):
    wanted = {name: setting.value for name, setting in built.image.env.items()}
    found = dict(entry.split("=", 1) for entry in built.info.env)
    assert found == {"PATH": PATH, **wanted}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LANG", "C.UTF-8"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("OMP_NUM_THREADS", "1"),
        ("PDSH_RCMD_TYPE", "ssh"),
    ],
)
def test_a_process_in_the_node_sees(said, name, value):
    assert said(f"printenv {name}") == value


def test_the_configuration_starts_the_node_under_an_init(built, saved):
    config = saved.config["config"]
    assert config["Entrypoint"] == list(built.image.base.entrypoint)
    assert config["Cmd"] == ["python3", NODE_PROGRAM]
    assert config["WorkingDir"] == "/root"
    assert not config.get("ExposedPorts") and not config.get("Volumes")


def test_the_first_process_is_tini(host):
    first = host.process.get(pid=1)
    assert (first.comm, first.args) == ("tini", f"/usr/bin/tini -- python3 {NODE_PROGRAM}")


def test_tini_reaps_orphans(host, said):
    orphan = said("sh -c 'sleep 0.1 > /dev/null 2>&1 & echo $!'")
    until(lambda: not host.process.filter(pid=orphan), 10)


def test_inside_files_are_the_projects(host, built):
    content = host.file(NODE_PROGRAM).content_string
    assert content == built.plan.context["stackyard/inside/node.py"]
    for name in ("sshd_config", "ssh_config"):
        content = host.file(f"/etc/ssh/{name}").content_string
        assert content == built.plan.context[f"stackyard/inside/{name}"]
