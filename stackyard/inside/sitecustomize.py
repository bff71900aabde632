"""Python imports this at every start: launchers and ranks import much and live for seconds.

Owns when memory is searched for unreachable cycles, and where this process's NCCL writes its log
(a file of its own: NCCL's `%h.%p` in a name would not survive pdsh). With Python's own settings
a quarter to a half of a short launch is spent on it: thousands of searches while modules load,
of which none finds anything, and a last one through all of them at the end.
"""

import atexit
import gc
import os
import socket

gc.set_threshold(100_000, 20, 100)
# The first to be registered is the last to run: what others do at exit comes before it.
atexit.register(gc.freeze)
if os.environ.get("STACKYARD_NCCL_LOGS"):
    os.environ["NCCL_DEBUG_FILE"] = "{}/nccl.{}.{}".format(
        os.environ["STACKYARD_NCCL_LOGS"], socket.gethostname(), os.getpid()
    )
