"""Keep what was seen: records, pages, comparisons, signed evidence.

It must not judge.
"""
