"""Say what an image holds: layers, packages, bytes, and secrets that must not be published.

It must not change an image.
"""
