"""Runs examples/ddp's training with one deliberate fault: `faults.py FAULT ARGS...`.

Runs inside a node, beside train.py; each fault is what its name says, on rank 1 from update 13.
"""

import os
import subprocess
import sys
import time

import stackyard_record
import torch

AT = 13
RANK = int(os.environ["RANK"])
Original = stackyard_record.Recorder


class Faulty(Original):
    """A recorder that lets the fault happen at its update."""

    def step(self, step, loss):
        if RANK == 1 and step == AT:
            if FAULT == "die":
                os._exit(9)
            if FAULT == "hang":
                time.sleep(3600)
        super().step(step, float("nan") if FAULT == "nan" and step >= AT else loss)

    def params(self, step, named, group="all"):
        named = list(named)
        if FAULT == "drift" and RANK == 1:
            with torch.no_grad():
                named[0][1][0, 0] += 1e-6
        super().params(step, named, group)

    def end(self, step):
        if FAULT.startswith("stray") and RANK == 1:
            # Holding the rank's output also keeps its ssh session, and so the launcher, alive.
            output = None if FAULT == "stray-holding-output" else subprocess.DEVNULL
            subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=output, stderr=output)
        super().end(step)


def main():
    stackyard_record.Recorder = Faulty
    if FAULT == "absent" and RANK == 1:
        time.sleep(3600)
    if FAULT == "lone":
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ |= {"MASTER_PORT": "29999", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    if FAULT == "forget":
        torch.optim.Adam.load_state_dict = lambda self, state: None
    import train

    train.main()


if __name__ == "__main__":
    FAULT = sys.argv.pop(1)
    main()
