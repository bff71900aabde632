"""What is told of trees over installed packages, and what is refused before anything is laid."""

from types import SimpleNamespace

import pytest

from stackyard.cli.steps import mount
from stackyard.mesh.mounts import Mount
from stackyard.system.errors import UsageError
from tests.unit import samples

PLAN = SimpleNamespace(stack="toy", run="r")
RUN = SimpleNamespace(plan=PLAN, containers={"one": "c"})
MOUNT = Mount(package="alpha", source="/home/me/alpha", place="/srv/code/alpha")
FIXES = [samples.fix(id="alpha-old", package="alpha"), samples.fix(id="beta-old", package="beta")]


def lay(monkeypatch, mounts, despite):
    monkeypatch.setattr(mount, "_fixes", lambda *given: FIXES)
    job = SimpleNamespace(name="j", env={})
    return mount.lay(None, None, RUN, job, ("one",), mounts, despite, print)


@pytest.mark.parametrize(
    ("mounts", "despite", "said"),
    [
        ([], ["alpha-old"], "--despite belongs to --overlay"),
        ([MOUNT], ["alpha-odd"], "has no fix 'alpha-odd'"),
        ([MOUNT], ["beta-old"], "beta-old is a fix of beta, and no tree stands in for that"),
    ],
)
def test_a_fix_that_could_not_be_left_out_is_refused(monkeypatch, mounts, despite, said):
    with pytest.raises(UsageError, match=said):
        lay(monkeypatch, mounts, despite)


def test_a_fix_whose_files_a_tree_lacks_is_told():
    told = []
    answer = {"files": 1, "digest": "sha256:" + "a" * 64, "compiled": [],
              "fixes": {"applied": [], "there": [], "absent": ["alpha-old"]}}  # fmt: skip
    mount._judge({"one": answer}, MOUNT, RUN, FIXES, [], told.append)
    assert "none of the files that these fixes repair: alpha-old" in told[-1]
