"""Join nodes by ssh, on this engine or over hosts, and keep runs that live on them.

It must not judge what a training did.
"""
