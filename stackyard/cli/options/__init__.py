"""Declare what can be typed: one frozen request a command, whose fields are its options.

It must import nothing but the decorator's parts: every command line reads all of it.
"""
