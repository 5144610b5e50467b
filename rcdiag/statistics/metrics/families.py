"""Families of metrics: each answers one question, and says what to do about a bad answer."""

from __future__ import annotations

from rcdiag.statistics.metrics.metric import FAMILIES, MetricFamily

MAGNITUDE = MetricFamily(
    name="magnitude",
    question="How far apart are the two policies?",
    slug="mismatch-above-guide",
    fix="see which tokens and steps carry it; score other precisions of the same model to tell "
    "engine from precision",
)
OVERLAP = MetricFamily(
    name="overlap",
    question="How many samples are left after importance weighting?",
    slug="little-overlap",
    fix="weights of whole sequences are of little use at this mismatch and length; lessen the "
    "mismatch, or correct by token",
)
TAIL = MetricFamily(
    name="tail",
    question="How much hangs on few tokens or sequences?",
    slug="heavy-tail",
    fix="look at the worst tokens and sequences in the report: one cause often explains them all",
)
VALIDITY = MetricFamily(
    name="validity",
    question="Were the tokens drawn from the recorded behavior policy?",
    slug="behavior-is-not-the-sampler",
    fix="no correction helps before this: check that the behavior log-probs are those of the "
    "distribution that sampled (temperature, top-p, penalties, weights, alignment); log-probs that "
    "were scored again are not",
    gate=True,
)

FAMILIES.ship((MAGNITUDE, OVERLAP, TAIL, VALIDITY))
