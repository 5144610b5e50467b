"""Thresholds that several causes share, each with its unit and reason.

Thresholds of one family alone are at the top of its file.
"""

from __future__ import annotations

# Shares of tokens, rows or turns. A fault that affects all of them is visible in NEARLY_ALL, since
# other faults, rare values and chance hide it in the rest; MOST leaves room for a second fault.
# PART is more than exceptions account for, FEW is no more than that.
ALL, NEARLY_ALL, MOST, PART, FEW = 0.999, 0.95, 0.8, 0.2, 0.02
# The main part of a whole; of an estimated quantity, what a cause must explain to be the cause.
HALF = 0.5
# Log-ratios are one-sided if this share of their sum of squares has one sign: the rest is rounding.
ONE_SIDED = 0.99
# Counts: a share or a correlation needs FEWEST tokens or token ids, or FEWEST_ROWS rows; a pattern
# needs FEWEST_OF_PATTERN rows, turns, steps or repeats.
FEWEST, FEWEST_ROWS, FEWEST_OF_PATTERN = 20, 8, 4
FEWEST_OF_ROW = 8  # tokens of a row or turn: fewer may all be equal, or decrease, by chance
ENOUGH = 200  # sampled tokens that a judgement of their distribution, and a verdict, need
MOST_IDS = 8  # at most this many token ids are said to stand out
SHOWN, LISTED = 4, 12  # names or numbers in a sentence, and in a list of the results
TRIED = 4  # candidates of a kind, such as layers, that are tried, the likeliest first
LARGEST_VOCABULARY = 2**18  # tokens; no model of today has more
# Ratio of the rms log-ratios of two parts of a table: from LARGER on they differ in size, from
# MUCH_LARGER on they are parts of two kinds.
LARGER, MUCH_LARGER = 1.5, 3.0
MANY_TIMES = 5.0  # ratio from which on all members of one part are larger than all of the other
# Correlation of surprisals on both sides: at most UNRELATED for unrelated tokens, at least RELATED
# for the same tokens under some fault, at least SAME for the same tokens.
UNRELATED, RELATED, SAME = 0.4, 0.6, 0.8
# Nats: float32 rounding of logits moves a log-prob, or the mean of a ratio, by up to this.
ROUNDING = 1e-3
CERTAIN = -ROUNDING  # nats: a larger log-prob is 0 but for rounding
# Log-probs of tokens, nats: above SURE (90%) a side is sure of a token, below UNSURE (40%) it is
# not; below RARE (5%) the token is rare.
SURE, UNSURE, RARE = -0.1, -0.9, -3.0
# In a correct column few tokens have less than this log-prob, nats: 1 in 400.
HARDLY_EVER = -6.0
TWICE = 0.6931471805599453  # ln 2, nats: twice the probability
# Two temperatures differ, and one distribution is another power of the other, if the logarithm of
# the ratio is beyond this: engine noise moves an estimate by as much.
A_POWER = 0.03
# Standard errors: up to BY_ITS_ERROR a number may differ by chance; beyond SURELY it does not, even
# with as many tests as are made of every table.
BY_ITS_ERROR, SURELY = 3.0, 4.0
# The same as differences of log-likelihoods, nats; z standard errors are z^2 / 2. One hypothesis
# is better than another beyond DECISIVE, and one that was chosen among many beyond WITH_A_CHOICE:
# of 200 places that are tried, the best one is by chance that much better in one series of
# thousands.
DECISIVE, WITH_A_CHOICE = BY_ITS_ERROR**2 / 2.0, 12.0
# Nats: differences below SLIGHT are no evidence of a fault, even if they are more than rounding;
# quantised weights and other small faults stay below COARSE.
SLIGHT, COARSE = 0.05, 0.1
# Nats: a larger difference comes from another token or distribution; weights and precision hardly
# move tokens that far.
LARGE = 1.0
# p-value below which the result of a test is not taken for chance.
BY_CHANCE = 0.01
# Nats: values that differ by less are equal up to float32 rounding.
EQUAL = 1e-6
# Keeps a division by a sum of squares defined where that is 0.
TINY = 1e-300
