"""Run trainings and judge what was seen: smokes, benches, proofs of fixes.

`smoke`, `bench.play` and `prove.play` run them; `judge` and its neighbours give the verdicts. It
must not write reports.
"""
