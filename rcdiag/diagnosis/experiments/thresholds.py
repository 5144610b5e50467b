"""Thresholds that several experiments share, each with its unit and reason.

Thresholds of one experiment alone are at the top of its file; those that causes have too, such as
shares and standard errors, are in `rcdiag.diagnosis.thresholds`.
"""

from __future__ import annotations

from rcdiag.diagnosis.thresholds import HARDLY_EVER

# Gain of a hypothesis over the unchanged model, nats per token: from GAIN on its test is repeated
# on more rows; from SLIGHT_GAIN on it is, if no other candidate is left; one below LEAST_GAIN
# counts as none.
GAIN, SLIGHT_GAIN, LEAST_GAIN = 0.3, 0.1, 0.01
# Nats: differences between two columns are clipped to this, so that a few tokens cannot decide.
LARGEST_DIFFERENCE = -HARDLY_EVER
# The effect of another prompt is visible in the first EARLY tokens of a response, and hardly from
# token LATE on.
EARLY, LATE = 8, 24
# Rows on which a hypothesis is tested, at first and again; CONFIRM_ROWS are enough for the scale of
# rounding and other means over rows too.
SCREEN_ROWS, CONFIRM_ROWS = 6, 32
SCANNED = 1_500  # tokens of a distribution on which a setting is searched
SENSITIVE = 0.02  # sensitivity above which logit noise is visible in a token's log-prob
# In units of an engine's noise: a token beyond OUTLYING is an outlier, which another context,
# other experts or weights cause; one beyond FAR_OFF has a fault of its own. Rounding alone leaves
# at most FEW_OFF of the tokens beyond FAR_OFF.
OUTLYING, FAR_OFF = 10.0, 25.0
FEW_OFF = 0.004
