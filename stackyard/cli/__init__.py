"""Turn what was typed into one call, and show what came back.

It must not decide what another room owns.
"""
