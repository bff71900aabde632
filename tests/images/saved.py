"""A saved image: its configuration, and what the gate finds in each of its layers.

Owns reading `docker save`'s archive. It must not know any rule: `stackyard.gate` does.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stackyard.caller import Caller
from stackyard.gate import NOTHING, Allowed, Finding, scan_layer


@dataclass(frozen=True, kw_only=True)
class SavedImage:
    """An image's configuration as saved, and what was found, by layer."""

    config: Mapping[str, Any]
    layers: tuple[tuple[Finding, ...], ...]

    def of_rule(self, rule: str) -> list[str]:
        """What breaks a rule, once for each path."""
        return sorted({str(f) for layer in self.layers for f in layer if f.rule == rule})


def scan_image(
    path: Path,
    caller: Caller,
    known: dict[str, tuple[Finding, ...]],
    allowed: Allowed = NOTHING,
) -> SavedImage:
    """Read a saved image; layers in `known` (by digest) are not read again, new ones added."""
    with tarfile.open(path, "r:") as outer:
        manifest = json.loads(_member(outer, "manifest.json").read())[0]
        config = json.loads(_member(outer, manifest["Config"]).read())
        digests = config["rootfs"]["diff_ids"]
        for digest, name in zip(digests, manifest["Layers"], strict=True):
            if digest not in known:
                known[digest] = tuple(scan_layer(_member(outer, name), caller, allowed))
    return SavedImage(config=config, layers=tuple(known[digest] for digest in digests))


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None, name
    return found
