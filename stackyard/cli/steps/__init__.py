"""Run the steps of each command, from its request to the output.

Only a command imports its module, when it runs.
"""
