"""Publishes an image that is no stack's, as a process of its own that can be killed.

python -m tests.release.driver PLACE IMAGE KEY SPOOL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stackyard.release.connection import PATIENT, Patience
from stackyard.release.credentials import Login
from stackyard.release.publish import Published, Publisher, PublishPlan
from stackyard.release.registry import Registry
from stackyard.release.spool import Spool
from stackyard.release.statement import LOCK, Attached, Subject
from stackyard.scan.oci import parse_repository
from stackyard.system import cleanup, process
from stackyard.system.engine import Engine
from tests.release.registry import PASSWORD, USER

SUBJECT = Subject(stack="accelerate", version="1.0", base_name="cpu", base_release="cpu")


def publish(
    place: str, image: str, key: Path, spool: Path, patience: Patience = PATIENT
) -> Published:
    """One publication."""
    repository, login = parse_repository(place), Login(user=USER, password=PASSWORD)
    with Registry(repository, login, patience=patience) as registry, Engine() as engine:
        info = engine.image(image)
        assert info is not None
        store = Spool(spool)
        files = [
            Attached(title=f"{number}.lock", media_type=LOCK, data=f"lock {number}".encode())
            for number in range(3)
        ]
        wanted = PublishPlan(
            subject=SUBJECT, info=info, created="2026-01-01T00:00:00+00:00", proof=None,
            attached=files, locks={}, key=key, builder={"stackyard": "tests"}, source={},
        )  # fmt: skip
        saved = store.save(engine.saved(info.id), {}, diff_ids=info.layers)
        print("saved", flush=True)
        return Publisher(registry, store, lambda text: print(text, flush=True)).publish(
            saved, wanted
        )


if __name__ == "__main__":
    with cleanup.guarded(process.Warden):
        done = publish(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    print(json.dumps({"name": done.name, "digest": done.digest, "sent": done.sent}), flush=True)
