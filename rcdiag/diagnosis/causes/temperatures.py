"""Temperature: one column is the other's distribution at another temperature, or nearly so.

With p = softmax(logits / T), log p at one temperature is a multiple of log p at another, up to a
constant that all tokens of a context share: sampler = power * trainer - log sum, where
power = T of the trainer / T of the recorded column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from rcdiag.diagnosis.causes.cause import (
    CLEAR,
    EXACT,
    GUESS,
    LIKELY,
    Suspicion,
    fact,
    mean_ratio_fact,
    shipped,
    shipped_family,
)
from rcdiag.diagnosis.features import LARGE_MISMATCH, Features, LogRatios
from rcdiag.diagnosis.features.log_ratios import ENGINE_NOISE
from rcdiag.diagnosis.thresholds import (
    A_POWER,
    BY_ITS_ERROR,
    CERTAIN,
    DECISIVE,
    EQUAL,
    FEW,
    FEWEST,
    HALF,
    ONE_SIDED,
    PART,
    ROUNDING,
    SAME,
    SLIGHT,
    SURE,
    SURELY,
)
from rcdiag.diagnosis.validity import INVALID, RECORD_SAMPLED
from rcdiag.formats import mean_ratio

TEMPERATURE_SLUGS = (
    "temperature-raw-recorded",
    "trainer-without-temperature",
    "sampler-ignores-temperature",
)
# How the power was found.
BY_SLOPE = "1 - slope of the log-ratio on the trainer's log-prob"
BY_METADATA = "by metadata"
BY_SHARED_PREFIXES = "by log-prob differences in shared contexts"

# Share of squared log-ratios that a temperature must explain; half of it where rows declare one.
MOST_OF_SQUARES = HALF
# Log-probs divided by a temperature without normalisation: the 5% and 95% quantiles of
# sampler / trainer of near-certain tokens, with their bounds where the trainer's log-probs are too
# low and where they are too high.
SURE_TOKENS, TOO_LOW, TOO_HIGH = (0.05, 0.95), 0.75, 1.4


class Power(Struct, frozen=True):
    """The power that turns one column's distribution into the other's, before normalisation."""

    value: float  # T of the trainer / T of the recorded column
    found_by: str


def _temperature(features: Features) -> tuple[str, Power, str] | None:
    """Return the temperature fault, its power, and the evidence of which distribution sampled."""
    if (
        not features.log_ratios.show_sampling
        or features.log_ratios.rms < ENGINE_NOISE
        # Without rare tokens a lower temperature makes nearly all others likelier.
        or (features.log_ratios.one_sided > ONE_SIDED and not features.case.without_rare)
    ):
        return None
    seen = _power(features)
    if (stated := _stated(features, seen)) is not None:
        return stated
    if seen is None:
        return None
    declared = features.declared.row_temperature
    sampled_at_1 = declared == 1.0 and not features.declared.sampler.sampling_temperature
    if seen.found_by == BY_SLOPE and sampled_at_1:
        return None  # the rows were sampled at temperature 1: the slope has another reason
    likelier, invalid = _likelier(features), features.validity.answer == INVALID
    if likelier == features.case.trainer or (likelier is None and invalid):
        return "temperature-raw-recorded", seen, "the trainer's distribution sampled"
    if invalid and seen.found_by != BY_SHARED_PREFIXES:
        return None  # neither distribution sampled: there is more than a wrong temperature
    reads = RECORD_SAMPLED
    if features.case.without_rare:
        reads = "without rare tokens it does not tell which distribution sampled"
    return _missing_at(seen.value, declared), seen, reads


def _missing_at(power: float, declared: float | None) -> str:
    """Return which side lacks the temperature, where the recorded distribution sampled.

    Either the trainer divides its logits by T = power and the sampler does not, or the sampler
    divides by T = 1 / power and the trainer does not. Where rows declare no temperature, the one of
    the two that is below 1 is assumed, since nearly all runs use such a temperature.
    """
    ignored = power < 1.0
    if declared is not None and declared != 1.0:
        ignored = np.log(power) / np.log(declared) > 0
    return "sampler-ignores-temperature" if ignored else "trainer-without-temperature"


def _likelier(features: Features) -> str | None:
    """Return which of the two policies sampled, by likelihood.

    None if the data does not decide, or if tokens were left out by their log-probs.
    """
    log_ratios, tokens = features.log_ratios, features.case.tokens
    mean, z = log_ratios.mean
    surely = abs(mean) * len(tokens) > DECISIVE and abs(z) > tokens.as_far(BY_ITS_ERROR)
    if not surely or features.case.picked_tokens:
        return None
    return features.case.trainer if mean > 0 else features.case.sampler


def _power(features: Features) -> Power | None:
    """Return the power that relates the two columns; None where there is none.

    Two tokens of one context give it exactly. Where no two rows share a context, it is estimated
    from the slope of the log-ratio on the log-prob, if that explains most of the log-ratios.
    """
    prefixes, declared = features.shared_prefixes, features.declared.row_temperature
    if prefixes is not None:
        explained = prefixes.is_one_power
        if declared is not None and not explained:
            # The declared temperature may explain most, but not all, of the difference.
            off = abs(np.log(declared))
            near = abs(abs(np.log(max(prefixes.power, EQUAL))) - off) < max(A_POWER, PART * off)
            explained = near and prefixes.residual < HALF * prefixes.distance
        return Power(prefixes.power, BY_SHARED_PREFIXES) if explained else None
    slope = features.log_ratios.power
    if slope is None or not abs(np.log(slope)) >= A_POWER:
        return None
    power = slope
    explains = features.log_ratios.by_log_prob >= MOST_OF_SQUARES
    if declared not in (None, 1.0) and features.log_ratios.by_log_prob >= MOST_OF_SQUARES / 2:
        # Contexts with several likely tokens bias the slope towards 1, by half at most, and never
        # away from it.
        stated = min((declared, 1 / declared), key=lambda T: abs(np.log(T / slope)))
        if HALF < np.log(slope) / np.log(stated) < 1.0 + PART:
            power, explains = stated, True
    return Power(power, BY_SLOPE) if explains and _is_bounded(features, power) else None


def _is_bounded(features: Features, power: float) -> bool:
    """Tell whether log-probs differ in the direction in which a power moves them, with exceptions.

    The log sum in sampler = power * trainer - log sum is positive if the power is below 1 and
    negative if it is above. A distribution that another model made surer of single tokens has a
    slope too, but breaks this. Rounding moves a log-prob by a small part of it.
    """
    tokens = features.case.tokens
    expected = power * tokens.trainer
    beyond = (tokens.sampler - expected) * (1 if power < 1.0 else -1)
    return float(np.mean(beyond > np.maximum(-PART * expected, ROUNDING))) < PART


def _stated(features: Features, seen: Power | None) -> tuple[str, Power, str] | None:
    """Return the fault that metadata declare: columns at two temperatures, unless the log-probs
    contradict that.
    """
    sampler, trained = features.declared.sampler, features.declared.trainer.temperature
    recorded, sampled = sampler.temperature, sampler.sampling_temperature
    if recorded is None or trained is None or recorded == trained:
        return None
    if sampled not in (recorded, trained) or min(recorded, trained) <= 0:
        return None
    power = trained / recorded
    far = max(A_POWER, PART * abs(np.log(power)))
    if seen is not None and abs(np.log(seen.value / power)) > far:
        return None
    # A power may be too near to 1 to show in shared prefixes.
    near_1, prefixes = abs(np.log(power)) < 2 * A_POWER, features.shared_prefixes
    hidden = prefixes is None or (near_1 and prefixes.residual < 2 * SLIGHT)
    if seen is None and not hidden:
        return None
    seen = seen or Power(power, BY_METADATA)
    if sampled == trained:
        return "temperature-raw-recorded", seen, "metadata: recorded at another temperature"
    slug = "sampler-ignores-temperature" if recorded == 1.0 else "trainer-without-temperature"
    return slug, seen, "metadata: the trainer's temperature is not the sampler's"


def _temperature_fault(features: Features) -> Suspicion | None:
    """Return which temperature is wrong, with its evidence."""
    fault = _temperature(features)
    if fault is None:
        return None
    slug, seen, reads = fault
    declared, log_ratios = features.declared.row_temperature, features.log_ratios
    estimate = seen.value if slug != "trainer-without-temperature" else 1 / seen.value
    known = declared is not None and declared != 1.0
    agrees = declared not in (None, 1.0) and bool(
        abs(np.log(estimate / declared)) < PART * abs(np.log(declared))
    )
    raw = slug == "temperature-raw-recorded"
    case = features.case
    either = not (raw or (case.picked_tokens and not case.without_rare))
    either &= _likelier(features) is None
    either &= seen.found_by != BY_METADATA
    possible = [] if known else [one for one in OTHERS if one != slug]
    if either:
        possible = ["temperature-raw-recorded", *possible]
    return Suspicion(
        slug=slug,
        confidence=GUESS if either else EXACT if agrees else CLEAR if raw or known else LIKELY,
        message=_sentence(slug, estimate, declared if agrees else None, features),
        evidence=[
            *_stated_temperatures(features),
            fact(
                "trainer's temperature / recorded temperature",
                seen.found_by,
                value=seen.value,
                explained_share_of_squares=log_ratios.by_log_prob,
            ),
            {**features.validity.evidence, "reads": reads},
        ],
        also_possible=possible,
    )


OTHERS = ("trainer-without-temperature", "sampler-ignores-temperature", "logit-softcap")


def _stated_temperatures(features: Features) -> list[dict[str, Any]]:
    """Return the temperatures that columns and metadata state, as evidence."""
    declared, sampler, trainer = (
        features.declared.row_temperature,
        features.declared.sampler,
        features.declared.trainer,
    )
    stated = {
        "sampled": declared if declared is not None else sampler.sampling_temperature,
        features.case.sampler: sampler.temperature,
        features.case.trainer or "": trainer.temperature,
    }
    known = {name: value for name, value in stated.items() if value is not None}
    if not known:
        return []
    reads = "different" if len(set(known.values())) > 1 else "the table says so"
    return [fact("temperature, by column and metadata", reads, **known)]


def _sentence(slug: str, estimate: float, stated: float | None, features: Features) -> str:
    """Say which side has which temperature: the stated one where the log-probs agree with it."""
    sampler, trainer = f"`{features.case.sampler}_log_probs`", f"`{features.case.trainer}`"
    value = f"{estimate:.2f}" if stated is None else f"{stated:g} (estimated {estimate:.2f})"
    if slug == "temperature-raw-recorded":
        return (
            f"Tokens were sampled at temperature {value}; {trainer} used the same temperature, but "
            f"{sampler} were taken before it was applied."
        )
    if slug == "sampler-ignores-temperature":
        return (
            f"{trainer} divides its logits by a temperature of {value}, at which the sampler did "
            "not sample."
        )
    return (
        f"{sampler} are of temperature {value}, those of {trainer} of temperature 1: the trainer "
        "does not divide its logits by the temperature."
    )


def _divided(features: Features) -> Suspicion | None:
    """Look for log-probs that were divided by the temperature and not normalised again."""
    if not features.log_ratios.show_sampling or features.log_ratios.rms < ENGINE_NOISE:
        return None
    log_ratios, tokens = features.log_ratios, features.case.tokens
    k, residual, of_log_ratios = log_ratios.proportion
    # With only a factor and noise, the residual is a small share of the squared values and of the
    # squared log-ratios.
    if abs(k - 1) > A_POWER and max(residual, of_log_ratios) < FEW:
        return Suspicion(
            confidence=CLEAR,
            message=f"Recorded log-probs are {k:.3f} times the trainer's throughout: log-probs "
            "were divided by a temperature, which leaves no distribution that sums to 1.",
            evidence=[
                fact(
                    "sampler = k * trainer", "a factor and nothing else", k=k, squares_left=residual
                )
            ],
            also_possible=["log-base"],
        )
    if features.case.without_rare:
        return None  # the test below rests on E[ratio]
    # Two tokens of one context share the log-sum: their difference is the same on both sides.
    if features.shared_prefixes is not None and features.shared_prefixes.distance > SLIGHT:
        return None
    (mean, z), (_, inverse_z) = log_ratios.ratio_mean, log_ratios.inverse_mean
    if log_ratios.one_sided < ONE_SIDED or abs(z) < SURELY or abs(inverse_z) < SURELY:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = tokens.sampler / tokens.trainer
    sure = ratio[(tokens.trainer > SURE) & (tokens.trainer < CERTAIN)]
    if len(sure) < FEWEST:
        return None
    low, high = np.quantile(sure, SURE_TOKENS)
    if not (high < TOO_LOW if mean < 1 else low > TOO_HIGH):
        return None
    if not _tied_to_surprisal(log_ratios):
        # without this relation, mass was added to the softmax sum or removed from it
        return None
    return Suspicion(
        confidence=CLEAR,
        message=f"E[ratio] is {mean_ratio(mean)} and every log-ratio has one sign: the trainer "
        "divided log-probs, not logits, by the temperature, so that they no longer sum to 1.",
        evidence=[
            mean_ratio_fact(features, "the trainer's probabilities do not sum to 1"),
            fact(
                "ratio of log-probs at likely tokens, sampler / trainer",
                "it depends on the context",
                low=low,
                high=high,
            ),
        ],
        also_possible=["vocabulary-padding"] if mean < 1 else ["vocab-shard-wrong"],
    )


def _tied_to_surprisal(log_ratios: LogRatios) -> bool:
    """Tell whether |log_ratio| shrinks with the surprisal among near-certain tokens."""
    sampler, moved = log_ratios.tokens.sampler, np.abs(log_ratios.values)
    sure = (sampler > SURE) & (sampler < CERTAIN) & (moved > 0)
    if sure.sum() < FEWEST:
        return False
    surprisal, size = np.log(-sampler[sure]), np.log(moved[sure])
    return float(np.corrcoef(surprisal, size)[0, 1]) > SAME


def _softcap(features: Features) -> Suspicion | None:
    """Detect a cap on logits: one distribution is flatter, and large logit gaps shrink more than
    small ones.
    """
    log_ratios, prefixes = features.log_ratios, features.shared_prefixes
    if (
        not features.log_ratios.show_sampling
        or log_ratios.rms < LARGE_MISMATCH
        or _temperature(features) is not None
    ):
        return None
    if (
        log_ratios.power is None
        or not abs(np.log(log_ratios.power)) >= A_POWER
        or log_ratios.by_log_prob < MOST_OF_SQUARES
        or log_ratios.one_sided > ONE_SIDED
    ):
        return None
    # Capped logits are normalised: E[ratio] is 1 within its error.
    if features.validity.answer == INVALID or features.validity.lacks_ratio:
        return None
    if prefixes is None or prefixes.is_one_power:
        return None  # only two tokens of one context distinguish a cap from a temperature
    flatter = "sampler" if log_ratios.power < 1 else "trainer"
    return Suspicion(
        confidence=LIKELY,
        message=f"The {flatter}'s distribution is flatter in every context, but not by one factor: "
        "large gaps between log-probs shrink more than small ones, as under a cap on logits.",
        evidence=[
            fact(
                BY_SLOPE,
                "flatter, but not by one factor",
                value=log_ratios.power,
                explained_share_of_squares=log_ratios.by_log_prob,
            ),
            features.validity.evidence,
        ],
        also_possible=["trainer-without-temperature"],
    )


TEMPERATURES = (
    *shipped_family(TEMPERATURE_SLUGS, "distribution", _temperature_fault),
    shipped("log-probs-divided", "distribution", _divided),
    shipped("logit-softcap", "distribution", _softcap),
)
