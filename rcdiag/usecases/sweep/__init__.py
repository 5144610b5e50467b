"""Sweep every estimator over its thresholds on a table, in one pass.

`estimator_families` and `candidates` define what is tried; `plan` fixes it for a table. `bins` and
`token_bins` sort sequences and tokens into bins between thresholds, `sums` holds the sums of each
setting by cluster, and `estimates` computes its numbers from these. `recommend` chooses among the
candidates by the errors of their gradients (`sketched_gradients`, `scores`); `configuration` writes
them for a trainer. The numbers are those of `rcdiag.corrections` for the same correction.
To add a family: one entry in FAMILIES.
"""
