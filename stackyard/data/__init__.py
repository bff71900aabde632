"""Encode users' text as a stack's training reads it.

It must not encode on the host itself: `images/data/prepare.py` does, in a container of the stack.
"""
