"""What two policies' log-probs say about each other; no I/O, no torch.

Token values -> a row per sequence (`table`) -> totals per cluster (`totals`) -> metrics. All that
is added up is a sum, a maximum or a log-sum-exp, so the states of two shards add up to the state
of their union. To add a metric: `metrics.METRICS.add(Metric(...))`; sums that it needs and no other
has are part of its definition.
"""
