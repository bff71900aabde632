"""Keep the fused parts of this process: which are on, and what became of each.

Added by Stackyard beside the packages that have such parts. STACKYARD_FUSED names the parts that are on (all of them unless
set, or `1`); `0` is none of them: the package's own code then runs, line by line. Smokes and benches read `states()`. In
`invoke run` every change is written to `rankN.fused`, beside the rank's log. Standard library only.
"""

import contextlib
import json
import os

# `unused`: it was asked for a training on a GPU, and something kept it from running.
# `partly`: it ran, and later the package's own code did more than a tenth of the calls.
OFF, IDLE, UNUSED, RAN, PARTLY, FELL_BACK = (
    "off", "not asked", "unused", "ran", "partly", "fell back",
)  # fmt: skip
# Odd calls are no loss: the first of an epoch, a last short batch.
MANY = 20
_parts = {}


class Part:
    """Hold one fused part with its state; a fallback is for good."""

    def __init__(self, name):
        named = [word.strip() for word in os.environ.get("STACKYARD_FUSED", "1").split(",")]
        self.name, self.on = name, name in named or "1" in named
        self.state, self.why = (IDLE if self.on else OFF), ""
        self._fused = self._kept = 0

    def ran(self):
        """Note a call that was fused."""
        self._fused += 1
        if self.state in (IDLE, UNUSED):
            self._turn(RAN, "")

    def unused(self, why):
        """Note what kept a call from being fused."""
        self._kept += 1
        if self.state == IDLE:
            self._turn(UNUSED, why)
        elif (
            self.state == RAN and self._kept >= MANY and 10 * self._kept > self._fused + self._kept
        ):
            self._turn(PARTLY, why)

    def fell_back(self, why):
        """Note that nothing is fused from now on, and why: an exception, or words."""
        if self.state != FELL_BACK:
            self._turn(FELL_BACK, _reason(why) if isinstance(why, BaseException) else why)

    def _turn(self, state, why):
        self.state, self.why = state, why
        with contextlib.suppress(OSError):
            _write()


def part(name):
    """Return the part of that name, always the same one."""
    return _parts.setdefault(name, Part(name))


def states():
    """Return what became of each part so far, by name."""
    return {name: {"state": one.state, "why": one.why} for name, one in _parts.items()}


def _reason(error):
    """Return an exception's kind and first line; torch.compile's may end before it says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return f"{type(error).__name__}: {said}"[:500]


def _write():
    """Write the states for the node's agent, if there is one; processes that a rank starts write nothing."""
    folder, rank = os.environ.get("STACKYARD_LOGS", ""), os.environ.get("RANK", "")
    if folder and rank.isdecimal() and os.environ.get("STACKYARD_RANK_PID") == str(os.getpid()):
        path = os.path.join(folder, f"rank{rank}.fused")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(states(), file)
        os.rename(f"{path}.new", path)
