"""Compare a trainer's own log with rcdiag's numbers: which keys, which steps, why they differ.

`keys` finds the keys of a log that rcdiag computes, `side_by_side` chooses steps and preset,
`likely_plans` lists other plans that may give the logged numbers, `read_again` reads the table
again for these, `reasons` computes each possible reason, and `run` chooses among them.
"""
