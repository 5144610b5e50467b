"""Causes that the evidence speaks against, so that nobody looks for them."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from rcdiag.diagnosis.signs import Signs

SHIFTS = ("shift-by-one", "shift-some-rows", "shift-after-tool")
TEMPERATURES = (
    "temperature-raw-recorded",
    "trainer-without-temperature",
    "sampler-ignores-temperature",
)
KEPT_SETS = ("top-p-renormalised", "top-k-renormalised", "min-p-renormalised")
WEIGHTS = ("stale-weights", "weights-never-synced", "tied-head-desync", "lora-missing")


def ruled_out(signs: Signs, named: Collection[str]) -> list[str]:
    """Return the causes that a table speaks against, those first that are asked for most."""
    if signs.case.trainer is None or len(signs.case.tokens) < 400:
        return []
    against = [slug for slugs, test, _ in TESTS if test(signs) for slug in slugs]
    return [slug for slug in against if slug not in named]


def _aligned(signs: Signs) -> bool:
    zero = signs.alignment.as_they_stand
    return bool(np.any(~np.isnan(zero))) and float(np.nanquantile(zero, 0.02)) > 0.8


def _no_other_law(signs: Signs) -> bool:
    return signs.law.rms < 0.012


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
        "both columns go together token by token, in nearly every row",
    ),
    (TEMPERATURES, _no_other_law, "the log-ratios are too small for another temperature"),
    (KEPT_SETS, _nothing_cut, "the mean ratio is 1: no tokens were cut from the sampler's law"),
    (
        WEIGHTS,
        _same_weights,
        "the table names the same weights for both sides, or log-ratios are small and have no "
        "direction by token id",
    ),
    (("replica-unsynced",), _steady, "all engines are about as far from the trainer"),
)

# What speaks against a cause that a table rules out, by its slug.
RULED_OUT_BY = {slug: words for slugs, _, words in TESTS for slug in slugs}
