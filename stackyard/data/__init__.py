"""Encode users' text as a stack's training reads it, and convert what the training leaves.

It must not do so on the host itself: programs of `images/data` do, in a container of the stack.
"""
