"""What every estimator would have done to a table, over its thresholds, in one pass.

`families.py` says which estimators there are and which settings are tried, `effects.py` what a
setting leaves of each sequence, `sums.py` how that is added up, `rows.py` what is read off. The
numbers are those of `rcdiag.corrections` for the same correction. `candidates.py` and
`recommend.py` choose. To add a family: one entry in FAMILIES.
"""
