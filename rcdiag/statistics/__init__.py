"""What two policies' log-probs say about each other; no I/O, no torch.

Token values -> a row per sequence (`table`) -> totals per cluster (`totals`) -> metrics. All that
is added up is a sum, a maximum or a log-sum-exp, so the states of two shards add up to the state
of their union. To add a metric: one entry in `metrics.METRICS`; if it needs a new token quantity,
one line in `table.TOKEN_SUMS`, `TOKEN_MAXIMA` or `TOKEN_LOGSUMEXPS`.
"""
