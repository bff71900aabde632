"""Fixes and limits that prove themselves: without them the recorded symptom, with them none.

Which proofs there are is `plan`'s, playing them in containers `play`'s, what was seen `judge`'s;
`report` and `page` say it.
"""
