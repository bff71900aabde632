"""Prove fixes and limits: the recorded symptom appears without them, and not with them.

`plan` lists the proofs, `play` runs them in containers, and `judge` judges them; `report.prove` and
`report.prove_page` write the results.
"""
