"""Resolve, plan and build images.

It must not run what it builds.
"""
