"""Causes that the evidence rules out."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from rcdiag.diagnosis.causes.alignment import SHIFT_SLUGS
from rcdiag.diagnosis.causes.kept_sets import KEPT_SET_SLUGS
from rcdiag.diagnosis.causes.temperatures import TEMPERATURE_SLUGS
from rcdiag.diagnosis.features import ENGINE_NOISE, Features
from rcdiag.diagnosis.features.alignment import GAIN, LAGS
from rcdiag.diagnosis.thresholds import (
    BY_ITS_ERROR,
    COARSE,
    ENOUGH,
    FEW,
    LARGER,
    RELATED,
    SAME,
)

WEIGHTS = ("stale-weights", "weights-never-synced", "tied-head-desync", "lora-missing")


def ruled_out(features: Features, named: Collection[str]) -> list[str]:
    """Return the causes that a table rules out, the most common ones first."""
    if features.case.trainer is None or len(features.case.tokens) < ENOUGH:
        return []
    against = [slug for slugs, test, _ in TESTS if test(features) for slug in slugs]
    return [slug for slug in against if slug not in named]


def _aligned(features: Features) -> bool:
    """Tell whether almost every turn aligns at lag 0, well or better than at any other lag.

    Where the columns differ a lot, no turn correlates well at lag 0; but shifted or swapped turns
    would correlate better at another lag or row.
    """
    alignment = features.alignment
    zero = alignment.unshifted
    if not np.any(~np.isnan(zero)):
        return False
    if float(np.nanquantile(zero, FEW)) > SAME:
        return True
    elsewhere = np.delete(alignment.correlations, LAGS.index(0), axis=0)
    best = np.max(np.where(np.isnan(elsewhere), -1.0, elsewhere), axis=0)
    margin = (zero - best)[alignment.long_enough]
    own_row = alignment.best_row == np.arange(len(features.case.lengths))
    return float(np.quantile(margin, FEW)) > GAIN and bool(own_row.all())


def _no_other_temperature(features: Features) -> bool:
    """Tell whether log-ratios are too small for a temperature, or the table states just one."""
    sampler, trainer = features.declared.sampler, features.declared.trainer
    stated = {sampler.temperature, sampler.sampling_temperature, trainer.temperature}
    return features.log_ratios.rms < ENGINE_NOISE or (len(stated) == 1 and None not in stated)


def _nothing_cut(features: Features) -> bool:
    return (
        abs(features.log_ratios.ratio_mean[1]) < BY_ITS_ERROR and features.log_ratios.rms < COARSE
    )


def _same_weights(features: Features) -> bool:
    log_ratios = features.log_ratios
    small = log_ratios.rms < ENGINE_NOISE and log_ratios.by_token_id.correlation < RELATED
    return features.declared.weights_agree or small


def _steady(features: Features) -> bool:
    parts = features.location.by_engine
    return parts is not None and float(parts.rms.max()) < LARGER * float(parts.rms.min())


TESTS: tuple[tuple[tuple[str, ...], Callable[[Features], bool], str], ...] = (
    (
        (*SHIFT_SLUGS, "rows-swapped"),
        _aligned,
        "almost every row aligns best with no shift",
    ),
    (
        TEMPERATURE_SLUGS,
        _no_other_temperature,
        "log-ratios are too small for another temperature, or the table states one temperature for "
        "sampling and both columns",
    ),
    (
        KEPT_SET_SLUGS,
        _nothing_cut,
        "E[ratio] = 1: no tokens were cut from the sampled distribution",
    ),
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
