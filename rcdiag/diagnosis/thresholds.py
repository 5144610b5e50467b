"""Thresholds that several causes share, each with its unit and reason.

Thresholds of one family alone are at the top of its file.
"""

from __future__ import annotations

# Shares of tokens, rows or turns: a fault that hits all of them shows in nearly all, since other
# faults, rare values and chance take a part; "most" leaves room for a second fault. A part is more
# than exceptions make, and a few are no more than these.
ALL, NEARLY_ALL, MOST, PART, FEW = 0.999, 0.95, 0.8, 0.2, 0.02
# Share of the squared log-ratios that have one sign where nothing but rounding goes the other way.
ONE_SIDED = 0.99
# Counts: fewer tokens or ids than the first show no share or correlation, and fewer rows than the
# second; fewer than the third, of rows, turns, steps or repeats, are no pattern at all.
FEWEST, FEWEST_ROWS, FEWEST_OF_PATTERN = 20, 8, 4
FEWEST_OF_ROW = 8  # tokens of a row or turn: fewer may all be alike, or fall, by chance
ENOUGH = 200  # sampled tokens that a verdict needs
MOST_IDS = 8  # token ids that are said to stand out: more are no few
SHOWN = 3  # names that a sentence lists
# Ratio of the sizes, rms log-ratio, of two parts of a table: from the first on they are not of one
# size, from the second on they are of two kinds.
LARGER, MUCH_LARGER = 1.5, 3.0
MANY_TIMES = 5.0  # from here on all of one part differ from all of the other
# Correlations of the surprisals of one token on both sides: of unrelated tokens, at least of the
# same tokens under some fault, and of the same tokens.
UNRELATED, RELATED, SAME = 0.4, 0.6, 0.8
# Log-probs of tokens, nats: above the first a token is certain, and rounding hides the rest; a side
# is sure of a token above the second (90%), unsure below the third (40%), and below the last it is
# rare (5%).
CERTAIN, SURE, UNSURE, RARE = -1e-3, -0.1, -0.9, -3.0
# In a correct column few tokens have less than this log-prob, nats: 1 in 400.
HARDLY_EVER = -6.0
TWICE = 0.6931471805599453  # ln 2, nats: twice the probability
# Standard errors: up to the first a number may differ by chance; beyond the second it does not,
# although every table is asked many questions.
BY_ITS_ERROR, SURELY = 3.0, 4.0
# Nats: differences below the first show no fault although they may be more than rounding; quantised
# weights and other small faults stay below the second.
SLIGHT, COARSE = 0.05, 0.1
# Nats: a difference below the first is lost in the noise of two engines. One beyond the second is
# of another token or distribution; weights and precision hardly move a token that far.
LOST_IN_NOISE, LARGE = 0.02, 1.0
# Probability below which an answer that names a cause is not one of chance.
BY_CHANCE = 0.01
# Nats: values that differ by less are equal but for float32.
EQUAL = 1e-6
# Keeps a division by a sum of squares defined where that is 0.
TINY = 1e-300
