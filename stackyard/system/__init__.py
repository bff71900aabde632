"""Reach the world outside Python: the container engine, processes, locks, keys, clean-up.

Errors and values of an image live here, too. It must know nothing of stacks, trainings or hosts.
"""
