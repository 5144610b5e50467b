"""Comparison of the log-probs of two policies; no I/O, no torch.

A pair of policies (`pair`) gives token quantities (`ratios`), which are reduced to a row per
sequence and to sums per cluster (`totals`); metrics are computed from these (`suite`, `metrics`).
The result for a batch is a state; states merge into that of the whole table (`merging`). To add a
metric: `metrics.METRICS.add(Metric(...))`, which may include sums that no other metric uses.
"""
