"""Thresholds that several experiments share, each with its unit and reason.

Thresholds of one experiment alone are at the top of its file; those of causes are in
`rcdiag.diagnosis.thresholds`.
"""

from __future__ import annotations

# Shares of rows or of squares. MANY: most, with room for rows that fit several hypotheses. SOME:
# more than the rows that fit none. SEVERAL: a few, which a second fault or chance may cause.
MANY, SOME, SEVERAL = 0.7, 0.3, 0.15
# Standard errors that a mean over all tokens must differ by, since many small biases shift it.
CERTAIN = 6.0
# Nats of log-likelihood by which one hypothesis is significantly better than another (DECISIVE),
# and by which it must be better if it was chosen among many.
DECISIVE, WITH_A_CHOICE = 4.0, 12.0
# Nats: differences between two columns are clipped to LARGEST_DIFFERENCE, so that a few tokens
# cannot decide; a token beyond NOT_ROUNDING differs by more than float32 noise.
LARGEST_DIFFERENCE, NOT_ROUNDING = 5.0, 1e-3
# The effect of another prompt is visible in the first EARLY tokens of a response, and hardly from
# token LATE on.
EARLY, LATE = 8, 24
SCANNED = 1_500  # tokens of a distribution on which a setting is searched
UNSURE = 0.02  # sensitivity above which logit noise is visible in a token's log-prob
# In units of an engine's noise: a residual whose scale is up to MOST_NOISE counts as that noise,
# since the scale is only estimated; a token beyond OUTLYING is an outlier.
MOST_NOISE, OUTLYING = 1.3, 10.0
FEWEST_OF_ID = 3  # tokens of one id that a statement about this id needs
