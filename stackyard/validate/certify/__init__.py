"""Name the host, GPU or link that is bad, by training in groups.

Owns which groups are tested and how their results are read. It must not start a training.
"""
