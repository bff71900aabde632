"""Declare what can be typed: one frozen request per command, whose fields are its options.

It must import nothing but the decorator's parts, since every command imports all of it.
"""
