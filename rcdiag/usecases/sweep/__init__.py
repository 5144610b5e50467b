"""Sweep every estimator over its thresholds on a table, in one pass.

`estimator_families` and `candidates` say what is tried; `plan` lays it out for a table. `bins` and
`token_bins` sort sequences and tokens between thresholds, `sums` adds up by cluster what each
setting does, and `estimates` reads any setting off these sums. `recommend` chooses among the
candidates by the errors of their gradients (`sketched_gradients`, `scores`); `configuration` writes
them for a trainer. The numbers are those of `rcdiag.corrections` for the same correction.
To add a family: one entry in FAMILIES.
"""
