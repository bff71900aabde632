"""Name the host, GPU or link that is bad, by training in groups.

`plan` chooses the groups, `play` trains on them, `judge` judges. It must not write reports.
"""
