"""Run trainings and judge what was seen: smokes, benches, proofs of fixes.

`smoke` and each `runner` run them; `judge` and its neighbours give the verdicts. It must not write
reports.
"""
