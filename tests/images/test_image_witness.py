"""The witness of every fix that an image carries passes in that image.

That each one fails without its fix is shown when a fix is recorded; here it is shown that the
built image really has the repair, by running what used to fail.
"""

from __future__ import annotations

from stackyard import nodes
from stackyard.engine import Engine
from stackyard.process import last_lines
from tests.images.conftest import Built

# The text before and after the repair, for one fix of each stack.
TAKEN_BACK = {
    "fairseq-ddp-cpu": (
        "device_ids=[args.device_id],",
        'device_ids=[args.device_id] if device.type == "cuda" else None,',
    ),
    "deepspeed-numpy-layer-seed": (
        "parts.append(position[parts[-1], i])",
        "parts.append(int(position[parts[-1], i]))",
    ),
}


def test_the_witness_of_every_fix_passes(built: Built, node: nodes.Mesh, engine: Engine) -> None:
    image = built.image
    fixes = [*image.fixes, *(fix for wheel in image.wheels for fix in wheel.fixes)]
    failing = {}
    for fix in fixes:
        done = engine.exec(node.first, fix.witness.command, seconds=fix.witness.seconds + 30)
        if done.code != 0:
            failing[fix.id] = last_lines(done.output, 5)
    assert fixes
    assert failing == {}


def test_a_witness_without_its_repair_fails(built: Built, node: nodes.Mesh, engine: Engine) -> None:
    """One repair of each image taken back in this node only: its witness must notice."""
    fix = next(f for f in built.image.fixes if f.id in TAKEN_BACK)
    rule = fix.remedy.replace[0]
    wrong, right = TAKEN_BACK[fix.id]
    script = (
        "import pathlib, sysconfig, sys\n"
        "path = pathlib.Path(sysconfig.get_path('purelib')) / sys.argv[1]\n"
        "text = path.read_text()\n"
        "assert sys.argv[2] in text, 'the repaired text is not there'\n"
        "path.write_text(text.replace(sys.argv[2], sys.argv[3]))\n"
    )

    def swap(old: str, new: str) -> None:
        words = ["python3", "-c", script, rule.file, old, new]
        done = engine.exec(node.first, words, seconds=30)
        assert done.code == 0, done.output

    swap(right, wrong)
    try:
        done = engine.exec(node.first, fix.witness.command, seconds=fix.witness.seconds + 30)
    finally:
        swap(wrong, right)
    assert done.code != 0
