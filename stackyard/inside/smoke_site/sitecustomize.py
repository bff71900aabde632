"""Set up every Python process of a smoke or bench: when it collects garbage.

Launchers and ranks import much and live for seconds. With Python's own settings a quarter to a half
of a short launch is spent on garbage collection: thousands of searches while modules load, which
find nothing, and a last one through all objects at the end.
"""

import atexit
import gc

gc.set_threshold(100_000, 20, 100)
# Handlers run in reverse order of registration: those of others run before this one.
atexit.register(gc.freeze)
