"""The sampler could take only a part of the vocabulary: kept sets (top-p, top-k) and bans."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import PairTokens
from rcdiag.diagnosis.causes.cause import (
    CLEAR,
    EXACT,
    LIKELY,
    Suspicion,
    fact,
    mean_ratio_fact,
    one_of,
    shipped,
    shipped_family,
)
from rcdiag.diagnosis.features import Features, RecordedKeptSets
from rcdiag.diagnosis.features.uniform_guess import below_a_uniform_guess
from rcdiag.diagnosis.thresholds import (
    ALL,
    BY_ITS_ERROR,
    CERTAIN,
    FEW,
    FEWEST,
    LARGE,
    MANY_TIMES,
    NEARLY_ALL,
    PART,
    RARE,
    SURELY,
    UNSURE,
)
from rcdiag.formats import mean_ratio

# Log-ratios are one-sided if those of the other sign are at most NOISE nats, which is the noise of
# bfloat16 engines with an rms of 0.03, or at most OTHER_SIGN of the largest.
NOISE, OTHER_SIGN = 0.12, 0.35

KEPT_SET_SLUGS = ("top-p-renormalised", "top-k-renormalised", "min-p-renormalised")


def sets_of_one(features: Features, policy: str | None) -> bool:
    """Detect kept sets of one token in a column: many exact zeros and hardly any value near 0.

    Without a kept set there are more values near 0 than zeros.
    """
    column = features.columns.get(policy or "")
    if column is None or column.decimals is not None:
        return False
    certain = int((column.values == 0.0).sum())
    nearly = int(((column.values < 0.0) & (column.values > CERTAIN)).sum())
    return certain >= FEWEST and nearly <= FEW * certain


def declared_kept_set(features: Features) -> str | None:
    """Return which kind of kept set the table's columns declare, or None."""
    facts = features.case.facts
    for slug, values in zip(KEPT_SET_SLUGS, (facts.top_p, facts.top_k, facts.min_p), strict=True):
        if values is not None and np.isfinite(values).any():
            known = values[np.isfinite(values)]
            acts = known < 1.0 if slug == "top-p-renormalised" else known > 0.0
            if float(np.mean(acts)) > NEARLY_ALL:
                return slug
    return None


def _kept_set(features: Features) -> Suspicion | None:
    """Detect log-probs that were renormalised over a kept set at all positions."""
    if not features.log_ratios.show_sampling:
        return None
    kept = features.kept_sets
    if kept is not None and kept.sampler_is_over_them is not None:
        over_both = kept.sampler_is_over_them and kept.trainer_is_over_them
        return (
            _from_kept_ids(features, kept) if kept.sampler_is_over_them and not over_both else None
        )
    if sets_of_one(features, features.case.sampler) and not sets_of_one(
        features, features.case.trainer
    ):
        return _from_certain_tokens(features)
    log_ratios = features.log_ratios
    mean, _ = log_ratios.ratio_mean
    # If the recorded column lacks a part of the trainer's support, all log-ratios are negative, up
    # to noise.
    low, high = np.quantile(log_ratios.values, [1 - ALL, ALL])
    if not features.validity.lacks_support or high > max(NOISE, OTHER_SIGN * abs(low)):
        return None
    if below_a_uniform_guess(features.case.tokens).any():
        return None  # the trainer scored other tokens, and log-ratios are hardly ever positive
    if log_ratios.predicted_by_id > NEARLY_ALL:
        return None  # the mass of a kept set depends on the context, not on the sampled token alone
    if features.shared_prefixes is not None and features.shared_prefixes.is_one_power:
        return None  # a kept set does not change the log-prob differences within one context
    words, evidence = _replayed(kept)
    return Suspicion(
        confidence=CLEAR,
        message="Recorded log-probs are of a part of the trainer's distribution, as after top-p: "
        f"E[ratio] is {mean_ratio(mean)}{words}, and log-ratios lie between {low:.2f} and 0, up to "
        "noise.",
        evidence=[
            mean_ratio_fact(features, "the mean mass that the kept set holds"),
            fact("log-ratios", "one sign and bounded", low=low, high=high),
            *evidence,
        ],
        also_possible=[
            *KEPT_SET_SLUGS,
            "logit-bias",
            "min-tokens",
            "vocabulary-padding",
        ],
    )


def _from_kept_ids(features: Features, kept: RecordedKeptSets) -> Suspicion:
    """Report the proof by kept ids: only the sampler's column is 0 at tokens alone in their set."""
    mean = mean_ratio(features.log_ratios.ratio_mean[0])
    words, evidence = _replayed(kept)
    proof = (
        f" ({kept.mean_size:.3g} of them on average): {kept.of_one:,} tokens"
        f"{features.case.drawn} were the only one left and are recorded as certain, while the "
        f"trainer gives them a mean log-prob of {kept.trainer_of_one:.3f} nats"
    )
    return Suspicion(
        confidence=EXACT,
        message="Recorded log-probs are renormalised over the kept ids"
        f"{'' if evidence else proof}. E[ratio] is {mean}{words}.",
        evidence=[
            kept.fact("recorded log-probs are over the kept ids, the trainer's are not"),
            mean_ratio_fact(features, "the mean mass that the kept set holds"),
            *evidence,
        ],
        also_possible=KEPT_SET_SLUGS,
    )


def _replayed(kept: RecordedKeptSets | None) -> tuple[str, list[dict[str, Any]]]:
    """Say what scoring the trainer over the same kept ids changes, as text and as evidence.

    The text follows E[ratio] in a sentence. Both are empty where no policy was scored over the ids.
    """
    replay = None if kept is None else kept.replay
    if replay is None:
        return "", []
    words = (
        f" over the whole vocabulary (kept mass {mean_ratio(replay.kept_mass)}) and "
        f"{mean_ratio(replay.ratio_mean)} over the kept ids (`{replay.policy}`); "
        f"{replay.outside_before:.1%} and {replay.outside:.1%} of the ratios are outside 0.9 to 1.1"
    )
    evidence = fact(
        "E[ratio] over the kept ids",
        "1 where nothing else differs",
        policy=replay.policy,
        value=replay.ratio_mean,
        kept_mass=replay.kept_mass,
        outside=replay.outside,
        outside_before=replay.outside_before,
    )
    return words, [evidence]


def _from_certain_tokens(features: Features) -> Suspicion | None:
    """Detect a kept set from exact zeros at tokens that are uncertain for the trainer.

    This works whatever else changes the trainer's distribution.
    """
    tokens = features.case.tokens
    zero = tokens.sampler == 0.0
    unsure = zero & (tokens.trainer < CERTAIN)
    if unsure.sum() < FEWEST or float(np.quantile(tokens.trainer[unsure], 0.1)) < UNSURE:
        return None  # zeros at unlikely tokens are placeholders
    mean = features.log_ratios.ratio_mean[0]
    return Suspicion(
        confidence=CLEAR,
        message=f"Recorded log-probs are renormalised over a kept set: {int(zero.sum()):,} tokens"
        f"{features.case.drawn} are recorded as certain and hardly any as nearly certain, and "
        f"{int(unsure.sum()):,} of the certain ones are uncertain for the trainer (E[ratio] "
        f"{mean_ratio(mean)}).",
        evidence=[
            fact(
                "log-probs of exactly 0",
                "kept sets of one token",
                **{features.case.sampler: zero.sum()},
                unsure_for_the_trainer=unsure.sum(),
            ),
            mean_ratio_fact(features, "the mean mass that the kept set holds"),
        ],
        also_possible=KEPT_SET_SLUGS,
    )


def _which_kept_set(features: Features) -> Suspicion | None:
    """Return the declared kept set, or the umbrella, where the log-probs show a kept set."""
    suspicion = _kept_set(features)
    if suspicion is None:
        return None
    kept = features.kept_sets
    if kept is not None and kept.same_size is not None:
        return replace(suspicion, slug="top-k-renormalised")
    return replace(suspicion, slug=declared_kept_set(features) or "truncated-law")


def banned(features: Features) -> Suspicion | None:
    """Detect contexts in which the sampler was not allowed the token that the trainer expects."""
    if not features.log_ratios.show_sampling or sets_of_one(features, features.case.sampler):
        return None  # a ban leaves no kept sets of one token
    log_ratios, tokens = features.log_ratios, features.case.tokens
    z = log_ratios.ratio_mean[1]
    low, high = np.quantile(log_ratios.values, [1 - ALL, ALL])
    strong = log_ratios.values < -LARGE
    share = float(strong.mean())
    if z > -BY_ITS_ERROR or low > -LARGE or high > NOISE or share > PART:
        return None
    if low > RARE and features.validity.lacks_support:
        return None  # a kept set is bounded like this too
    last = int(tokens.position[strong].max())
    ends = _ends_at(last, tokens, strong)
    if not ends and z > -SURELY:
        # that the effect ends at a position is evidence for min-tokens; logit-bias needs a larger z
        return None
    return Suspicion(
        slug="min-tokens" if ends else "logit-bias",
        confidence=LIKELY,
        message=f"At {share:.2%} of the tokens the trainer's log-prob is lower, by a median of "
        f"{-float(np.median(log_ratios.values[strong])):.1f} nats, and nowhere much higher: the "
        "sampler was not allowed the token that the trainer expects"
        + (f", at positions up to {last}." if ends else "."),
        evidence=[
            mean_ratio_fact(features, "mass that the sampler could not take"),
            fact(
                "strongly negative log-ratios",
                "tokens in place of a banned one",
                share=share,
                last_position=last,
            ),
        ],
        also_possible=["logit-bias" if ends else "min-tokens", "penalty"],
    )


def _ends_at(last: int, tokens: PairTokens, strong: np.ndarray) -> bool:
    """Tell whether the end token seems to be banned up to a position, as with min-tokens.

    `strong` flags the tokens in place of a banned one, the last of them at position `last`. They
    stop there, long before responses do. Responses share an end token, which hardly ever stands
    before that position.
    """
    places = np.sort(tokens.position[strong])
    if not float(np.mean(tokens.position > last)) > FEW or len(places) < FEWEST:
        return False
    after = tokens.position > places[int((1 - FEW) * (len(places) - 1))]
    if not MANY_TIMES * strong[after].mean() < strong[~after].mean():
        return False
    ends = tokens.token_id[np.append(np.diff(tokens.owner) != 0, True)]
    end = np.bincount(ends).argmax()
    at_end = tokens.position[tokens.token_id == end]
    return np.sum(ends == end) >= FEWEST and bool(np.mean(at_end < NEARLY_ALL * last) <= FEW)


KEPT_SETS = (
    *shipped_family(("truncated-law", *KEPT_SET_SLUGS), "distribution", _which_kept_set),
    shipped("min-tokens", "distribution", one_of("min-tokens", banned)),
)
