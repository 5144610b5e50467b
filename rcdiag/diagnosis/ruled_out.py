"""Causes that the evidence rules out."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from rcdiag.diagnosis.signs import Signs
from rcdiag.diagnosis.signs.alignment import GAIN, LAGS

SHIFTS = ("shift-by-one", "shift-some-rows", "shift-after-tool")
TEMPERATURES = (
    "temperature-raw-recorded",
    "trainer-without-temperature",
    "sampler-ignores-temperature",
)
KEPT_SETS = ("top-p-renormalised", "top-k-renormalised", "min-p-renormalised")
WEIGHTS = ("stale-weights", "weights-never-synced", "tied-head-desync", "lora-missing")


def ruled_out(signs: Signs, named: Collection[str]) -> list[str]:
    """Return the causes that a table rules out, the most common ones first."""
    if signs.case.trainer is None or len(signs.case.tokens) < 400:
        return []
    against = [slug for slugs, test, _ in TESTS if test(signs) for slug in slugs]
    return [slug for slug in against if slug not in named]


def _aligned(signs: Signs) -> bool:
    """Tell whether almost every turn aligns best at lag 0, in absolute terms or against other lags.

    Where the columns differ a lot no turn correlates well, but shifted or swapped ones would
    correlate better at another lag or row.
    """
    alignment = signs.alignment
    zero = alignment.as_they_stand
    if not np.any(~np.isnan(zero)):
        return False
    if float(np.nanquantile(zero, 0.02)) > 0.8:
        return True
    elsewhere = np.delete(alignment.correlations, LAGS.index(0), axis=0)
    best = np.max(np.where(np.isnan(elsewhere), -1.0, elsewhere), axis=0)
    margin = (zero - best)[alignment.judged]
    own_row = alignment.exchanged == np.arange(len(signs.case.lengths))
    return float(np.quantile(margin, 0.02)) > GAIN and bool(own_row.all())


def _no_other_law(signs: Signs) -> bool:
    """Tell whether log-ratios are too small for a temperature, or the table states just one."""
    sampler, trainer = signs.declared.sampler, signs.declared.trainer
    stated = {sampler.temperature, sampler.sampling_temperature, trainer.temperature}
    return signs.law.rms < 0.012 or (len(stated) == 1 and None not in stated)


def _nothing_cut(signs: Signs) -> bool:
    return abs(signs.law.ratio_mean[1]) < 3.0 and signs.law.rms < 0.1


def _same_weights(signs: Signs) -> bool:
    quiet = signs.law.rms < 0.016 and signs.law.by_token_id.correlation < 0.6
    return signs.declared.weights_agree or quiet


def _steady(signs: Signs) -> bool:
    parts = signs.places.by_engine
    return parts is not None and float(parts.rms.max()) < 2 * float(parts.rms.min())


TESTS: tuple[tuple[tuple[str, ...], Callable[[Signs], bool], str], ...] = (
    (
        (*SHIFTS, "rows-swapped"),
        _aligned,
        "almost every row aligns best with no shift",
    ),
    (
        TEMPERATURES,
        _no_other_law,
        "log-ratios are too small for another temperature, or the table states one temperature for "
        "sampling and both columns",
    ),
    (KEPT_SETS, _nothing_cut, "E[ratio] = 1: no tokens were cut from the sampled distribution"),
    (
        WEIGHTS,
        _same_weights,
        "both sides have the same weights fingerprint, or log-ratios are small and not systematic "
        "by token id",
    ),
    (("replica-unsynced",), _steady, "all engines differ from the trainer by similar amounts"),
)

# The reason why a table rules out a cause, by its slug.
RULED_OUT_BY = {slug: words for slugs, _, words in TESTS for slug in slugs}
