"""Faults that are planted in one host's ranks, by variables of hosts.yml alone.

The program that `invoke certify` trains has no fault to plant: a `sitecustomize` in a folder that
all hosts see changes torch in the ranks of that host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.fleet.emulated import Yard

PLANT = """
import sys, threading, time

def never():
    time.sleep(10**6)

def plant(what):
    count = [0]
    torch = sys.modules["torch"]
    if what == "slow":
        real = torch.nn.functional.cross_entropy
        def slow(*given, **more):
            end = time.process_time() + 0.4
            while time.process_time() < end:
                pass
            return real(*given, **more)
        torch.nn.functional.cross_entropy = slow
    elif what == "corrupt":
        real = torch.nn.functional.cross_entropy
        def flipped(gradient):
            return (gradient.view(torch.int32) ^ (1 << 13)).view(torch.float32)
        def wrong(*given, **more):
            count[0] += 1
            loss = real(*given, **more)
            if count[0] >= 4:
                loss.register_hook(flipped)
            return loss
        torch.nn.functional.cross_entropy = wrong
    else:
        real = torch.distributed.all_reduce
        def skipped(*given, **more):
            count[0] += 1
            return real(*given, **more) if count[0] < 4 else never()
        torch.distributed.all_reduce = skipped

def wait():
    # The program has imported what it needs when its own classes are there.
    while not hasattr(sys.modules["__main__"], "Training"):
        time.sleep(0.001)
    plant(WHAT)

threading.Thread(target=wait, daemon=True).start()
"""


def planted(yard: Yard, faults: Mapping[str, str]) -> Yard:
    """The same hosts with an inventory that plants a fault (`slow`, `corrupt`, `hang`) in some."""
    own = {}
    for name, what in faults.items():
        place = yard.shared / what
        place.mkdir(exist_ok=True)
        (place / "sitecustomize.py").write_text(PLANT.replace("WHAT", repr(what)))
        own[name] = {"PYTHONPATH": f"/shared/{what}"}
    return with_variables(yard, "-".join(f"{a}-{b}" for a, b in faults.items()), own)


def with_variables(yard: Yard, label: str, own: Mapping[str, Mapping[str, str]]) -> Yard:
    """The same hosts with an inventory that gives some of them variables of their own."""
    folder = yard.folder / label
    folder.mkdir(exist_ok=True)
    text = Path(yard.inventory).read_text()
    for name, variables in own.items():
        words = ", ".join(f'{key}: "{value}"' for key, value in variables.items())
        text = re.sub(rf"(  {name}: {{address: [0-9.]+)}}", rf"\1, env: {{{words}}}}}", text)
    (folder / "hosts.yml").write_text(text)
    return Yard(folder=folder, hosts=yard.hosts)
