"""What every estimator would have done to a table, over its thresholds, in one pass.

`families` says which estimators there are and which settings are tried, `thresholds` the
tokens between them, `sums` and `state` how what settings leave is added up, `estimates` what is
read off. The numbers are those of `rcdiag.corrections` for the same correction. `gradients`,
`scores` and `recommend` choose among `candidates`. To add a family: one entry in FAMILIES.
"""
