"""Take the steps of each command, from its request to what is shown of the result.

Each module is imported by its command alone, when that runs.
"""
