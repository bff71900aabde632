"""Run trainings and judge what was seen: smokes, benches, proofs of fixes.

It must not write reports.
"""
