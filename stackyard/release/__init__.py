"""Publish, verify and pull releases.

Nothing here is believed before its signature and digests are checked.
"""
