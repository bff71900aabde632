"""Releases: real registries, real engines."""
