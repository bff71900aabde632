"""Join nodes by ssh, on this engine or over hosts, and keep runs that live on them.

What ends a run over hosts runs in the nodes (`inside/supervisor.py`). It must not judge what a
training did.
"""
