"""Turn declared YAML into trusted values: stacks, bases, fixes, locks, examples.

It must not start anything, and no value leaves it before all files fit each other.
"""
