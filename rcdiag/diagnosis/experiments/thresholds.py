"""Thresholds that several experiments share, each with its unit and reason.

Thresholds of one experiment alone are at the top of its file; those of causes are in
`rcdiag.diagnosis.thresholds`.
"""

from __future__ import annotations

# Shares of the rows or squares: most of them, with room for rows that fit several hypotheses; some,
# which are more than rows that fit none; and a few, which a second fault or chance may make.
MANY, SOME, SEVERAL = 0.7, 0.3, 0.15
# Standard errors that a statement of all tokens takes, which many small biases move a little.
CERTAIN = 6.0
# Nats of log-likelihood by which one hypothesis is surely ahead of another, and by which one must
# be that chose among many.
DECISIVE, WITH_A_CHOICE = 4.0, 12.0
# Nats: a difference between two columns counts as this one, so that few tokens cannot decide; and
# one from which on a single token is off by more than float32 and its noise.
LARGEST_DIFFERENCE, NOT_ROUNDING = 5.0, 1e-3
# Tokens at the beginning of a response, where another prompt shows, and from which on it hardly
# does.
EARLY, LATE = 8, 24
SCANNED = 1_500  # tokens of a distribution on which a setting is searched
UNSURE = 0.02  # sensitivity from which on noise of the logits shows in a token
# Times an engine's noise: up to the first the scale of a residual is that noise, as it is
# estimated; a token beyond the second is an outlier.
MOST_NOISE, OUTLYING = 1.3, 10.0
FEWEST_OF_ID = 3  # tokens of one id from which on they tell of it
