"""What every estimator would have done to a table, over its thresholds, in one pass.

`families` says which estimators there are and which settings are tried, `effects` what a setting
leaves of each sequence (by `thresholds`), `sums` and `state` how that is added up, `estimates` what
is read off. The numbers are those of `rcdiag.corrections` for the same correction. `gradients`,
`scores` and `recommend` choose among `candidates`. To add a family: one entry in FAMILIES.
"""
