"""A second generator of tables with known faults, in numpy, independent of `tests/faults`.

The tables come from random language models whose whole next-token distribution is known at every
sampled position, so each fault is computed from the distributions, not added to the columns
afterwards.
"""
