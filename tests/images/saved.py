"""Saved images: their configuration, and each layer read once for all that is asked of it.

Owns reading `docker save`'s archive. It must not know any rule: `scan.secrets.gate` does.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stackyard.scan.contents import LayerContents, LayerReader
from stackyard.scan.mirror_traces import Caller
from stackyard.scan.secrets.gate import NOTHING, Allowed, Finding, scan_layer


@dataclass(frozen=True, kw_only=True)
class SavedLayer:
    """One layer: what breaks a rule of the gate, and the files that it holds."""

    findings: tuple[Finding, ...]
    contents: LayerContents


@dataclass(frozen=True, kw_only=True)
class SavedImage:
    """An image's configuration as saved, and its layers, the lowest first."""

    config: Mapping[str, Any]
    layers: tuple[SavedLayer, ...]

    def of_rule(self, rule: str) -> list[str]:
        """What breaks a rule, once for each path."""
        return sorted({str(f) for layer in self.layers for f in layer.findings if f.rule == rule})


def save(path: Path, *ids: str) -> None:
    """Write images into one archive; layers that they share are in it once."""
    done = subprocess.run(
        ["docker", "save", "-o", str(path), *ids], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def read_saved(path: Path, caller: Caller, allowed: Allowed = NOTHING) -> dict[str, SavedImage]:
    """Read an archive's images, by id; a layer that several of them have is read once."""
    known: dict[tuple[int, str], SavedLayer] = {}
    found = {}
    with tarfile.open(path, "r:") as outer:
        for entry in json.loads(member(outer, "manifest.json").read()):
            config = json.loads(member(outer, entry["Config"]).read())
            keys = list(enumerate(config["rootfs"]["diff_ids"]))
            for key, name in zip(keys, entry["Layers"], strict=True):
                if key not in known:
                    known[key] = SavedLayer(
                        findings=tuple(scan_layer(member(outer, name), caller, allowed)),
                        contents=LayerReader(key[0]).read(member(outer, name)),
                    )
            layers = tuple(known[key] for key in keys)
            name = Path(entry["Config"]).stem
            found[f"sha256:{name}"] = SavedImage(config=config, layers=layers)
    return found


def member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """One file of an archive."""
    found = archive.extractfile(name)
    assert found is not None, name
    return found
