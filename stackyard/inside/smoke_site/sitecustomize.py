"""Set up every Python process of an image: when it collects garbage, and where NCCL logs.

NCCL gets a file for each process, because its own `%h.%p` in a name would not survive pdsh.
Launchers and ranks import much and live for seconds. With Python's own settings a quarter to a half
of a short launch is spent on garbage collection: thousands of searches while modules load, which
find nothing, and a last one through all objects at the end.
"""

import atexit
import gc
import os
import socket

gc.set_threshold(100_000, 20, 100)
# Handlers run in reverse order of registration: those of others run before this one.
atexit.register(gc.freeze)
if os.environ.get("STACKYARD_NCCL_LOGS"):
    os.environ["NCCL_DEBUG_FILE"] = "{}/nccl.{}.{}".format(
        os.environ["STACKYARD_NCCL_LOGS"], socket.gethostname(), os.getpid()
    )
