"""The log-probs of two policies are compared here; no I/O, no torch.

A pair of policies (`pair`) gives quantities of tokens (`ratios`), which are reduced to a row per
sequence and to sums per cluster (`totals`); metrics are read off these (`suite`, `metrics`). What
is left of a batch is a state, and states merge into that of the whole table (`merging`). To add a
metric: `metrics.METRICS.add(Metric(...))`; sums that no other metric has are part of it.
"""
