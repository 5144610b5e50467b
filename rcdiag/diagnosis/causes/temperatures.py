"""Causes in the temperature: one column is of the other's law at another one, or nearly so."""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.diagnosis.causes.cause import Suspicion, fact, shipped
from rcdiag.diagnosis.causes.laws import BROKEN, VISIBLE, usable
from rcdiag.diagnosis.estimates import mean_ratio
from rcdiag.diagnosis.signs import HONEST, Law, Signs
from rcdiag.diagnosis.signs.forks import A_POWER, ROUNDING, Forks
from rcdiag.diagnosis.signs.tempered import (
    BY_FORKS,
    BY_METADATA,
    Tempered,
    tempered,
)
from rcdiag.diagnosis.validity import INVALID

# The mean log-ratio of divided log-probs over the mean surprisal is at most this.
MOST_OF_SURPRISAL = 3.0
# Share of what parts two tokens that a declared temperature leaves beside other differences.
MOST_LEFT = 0.6
# Share of squared log-ratios that a temperature that no row declares must explain.
MOST_OF_SQUARES = 0.4
# Log-probs that were divided are a multiple of the others but for noise, which leaves less than
# this share of squared log-ratios; or sure tokens tell, by the correlation of their log-ratios'
# size with their surprisal, both as logarithms.
LEFT_BY_FACTOR, TIED = 0.03, 0.8
# Nats by which all tokens together are likelier under one of two laws, so that the odds are 150 to
# 1, and standard errors of the mean.
LIKELIER, LIKELIER_Z = 5.0, 2.5
# Temperatures are set in tenths: by how much one of two must be nearer to a tenth to be meant.
ROUND = 0.015
EITHER = 0.6  # confidence where either law may have sampled


def _temperature(signs: Signs) -> tuple[str, Tempered, str] | None:
    """Return which fault of temperature there is, its estimate, and what tells it."""
    if not usable(signs) or signs.law.rms < VISIBLE or signs.law.one_sided > 0.995:
        return None
    seen = _power(signs)
    if (stated := _stated(signs, seen)) is not None:
        return stated
    if seen is None:
        return None
    declared = signs.declared.row_temperature
    likelier, invalid = _likelier(signs), signs.validity.answer == INVALID
    if seen.told_by != BY_FORKS:
        if declared == 1.0 and not signs.declared.sampler.sampling_temperature:
            return None  # every row was sampled at 1: another law that flattens
        known = declared is not None and _agrees(seen.factor, declared)
        if not known and signs.law.by_log_prob < MOST_OF_SQUARES:
            return None  # a slope may be significant and explain next to nothing
    if likelier == signs.case.trainer or (likelier is None and invalid):
        return "temperature-raw-recorded", seen, "the trainer's distribution sampled"
    if invalid and seen.told_by != BY_FORKS:
        return None  # neither distribution sampled: a temperature is not all that is wrong
    return _whose(seen.factor, declared), seen, "the recorded distribution sampled"


def _whose(factor: float, declared: float | None) -> str:
    """Return whose temperature is missing where the recorded distribution sampled.

    The factor is T of the trainer over T of the record: either the trainer divides by it and the
    sampler does not, or the sampler divides by its reciprocal and the trainer does not. Where rows
    declare no temperature, the round one of the two is meant, and of two round ones the one below
    1, as nearly all runs have it.
    """
    ignored, left_out = "sampler-ignores-temperature", "trainer-without-temperature"
    if declared is not None and declared != 1.0:
        return ignored if np.log(factor) / np.log(declared) > 0 else left_out
    off = {name: abs(T - round(T, 1)) for name, T in ((ignored, factor), (left_out, 1 / factor))}
    if abs(off[ignored] - off[left_out]) > ROUND:
        return min(off, key=off.__getitem__)
    return ignored if factor < 1.0 else left_out


def power_of_laws(signs: Signs) -> float | None:
    """Return the power of the trainer's law that is the sampler's; None without a temperature, and
    where it is not known exactly: tokens of one context tell it so.
    """
    fault = _temperature(signs)
    return None if fault is None or fault[1].told_by != BY_FORKS else fault[1].factor


def _likelier(signs: Signs) -> str | None:
    """Return the policy under whose law the tokens are so much likelier that it sampled them, of
    the two; None where both may have, or where tokens were left out by their log-probs.
    """
    law, tokens = signs.law, signs.case.tokens
    mean, z = law.mean
    surely = abs(mean) * len(tokens) > LIKELIER and abs(z) > tokens.as_far(LIKELIER_Z)
    # Noise of an engine takes half of its square from the mean, whichever side sampled.
    if not surely or signs.case.picked_tokens or abs(mean) < HONEST**2:
        return None
    return signs.case.trainer if mean > 0 else signs.case.sampler


def _power(signs: Signs) -> Tempered | None:
    """Return of which power one law is the other.

    Two tokens of one context tell it exactly. Where no two rows share a context, rare and sure
    tokens tell it from afar.
    """
    forks = signs.forks
    if forks is None:
        return tempered(signs.case.tokens)
    declared = signs.declared.row_temperature
    alone = forks.of_one_power
    if not alone and (declared is None or not _but_for_more(forks, declared)):
        return None
    return Tempered(forks.power, forks.left / forks.apart, 1.0, BY_FORKS)


def _but_for_more(forks: Forks, declared: float) -> bool:
    """Tell whether one law is the other at the temperature of the rows, but for other differences
    of the two sides, which leave less than the temperature takes off.
    """
    off = abs(np.log(declared))
    near = abs(abs(np.log(max(forks.power, 1e-9))) - off) < max(A_POWER, 0.1 * off)
    return bool(off > 2 * A_POWER and near and forks.left < MOST_LEFT * forks.apart)


def _stated(signs: Signs, seen: Tempered | None) -> tuple[str, Tempered, str] | None:
    """Return the fault that metadata state: columns of two temperatures, which log-probs bear out
    where they can tell.
    """
    sampler, trained = signs.declared.sampler, signs.declared.trainer.temperature
    recorded, sampled = sampler.temperature, sampler.sampling_temperature
    if recorded is None or trained is None or recorded == trained:
        return None
    if sampled not in (recorded, trained) or min(recorded, trained) <= 0:
        return None
    factor = trained / recorded
    far = max(0.03, 0.25 * abs(np.log(factor)))
    if seen is not None and abs(np.log(seen.factor / factor)) > far:
        return None
    if seen is None and signs.forks is not None and not _between(signs.forks, factor):
        return None
    seen = seen or Tempered(factor, 0.0, 1.0, BY_METADATA)
    if sampled == trained:
        return "temperature-raw-recorded", seen, "metadata: recorded at another temperature"
    slug = "sampler-ignores-temperature" if recorded == 1.0 else "trainer-without-temperature"
    return slug, seen, "metadata: the trainer's temperature is not the sampler's"


def _between(forks: Forks, factor: float) -> bool:
    """Tell whether a power that is too near to 1 to be seen in forks may be there."""
    return bool(abs(np.log(factor)) < 2 * A_POWER and forks.left < 2 * ROUNDING)


def _agrees(factor: float, declared: float) -> bool:
    """Tell whether a factor is the temperature of the rows, or one over it."""
    expected = abs(np.log(declared))
    return bool(abs(abs(np.log(factor)) - expected) < max(0.03, 0.15 * expected))


def _temperature_cause(slug: str):
    def weigh(signs: Signs) -> Suspicion | None:
        fault = _temperature(signs)
        if fault is None or fault[0] != slug:
            return None
        _, seen, reads = fault
        declared = signs.declared.row_temperature
        law = signs.law
        estimate = seen.factor if slug != "trainer-without-temperature" else 1 / seen.factor
        agrees = declared is not None and abs(np.log(estimate / declared)) < 0.12
        agrees &= seen.spread < 1.5
        known = declared is not None and declared != 1.0
        stated = declared if agrees else None
        confidence = 0.97 if agrees else 0.88
        if min(abs(law.ratio_mean[1]), abs(law.inverse_mean[1])) > BROKEN:
            confidence = 0.75  # neither law sampled these tokens: which one should have is a guess
        raw = slug == "temperature-raw-recorded"
        either = not (raw or signs.case.picked_tokens) and _likelier(signs) is None
        either &= seen.told_by != BY_METADATA
        possible = [] if known else _other_temperatures(slug)
        if either:
            possible = ["temperature-raw-recorded", *possible]
        return Suspicion(
            confidence=EITHER if either else confidence if raw or known else 0.85,
            message=_temperature_sentence(slug, estimate, stated, signs),
            evidence=[
                *_stated_temperatures(signs),
                fact(
                    seen.told_by,
                    f"T of the trainer over T of the record: {seen.factor:.2f}",
                    ratio=seen.factor,
                ),
                fact(
                    "E[ratio] and E[1 / ratio]",
                    reads,
                    ratio=law.ratio_mean[0],
                    ratio_z=law.ratio_mean[1],
                    inverse=law.inverse_mean[0],
                    inverse_z=law.inverse_mean[1],
                ),
            ],
            also_possible=possible,
        )

    return weigh


def _other_temperatures(slug: str) -> list[str]:
    names = ["trainer-without-temperature", "sampler-ignores-temperature", "logit-softcap"]
    return [name for name in names if name != slug]


def _stated_temperatures(signs: Signs) -> list[dict[str, Any]]:
    """Return what columns and metadata state of temperatures, before what statistics tell."""
    declared, sampler, trainer = (
        signs.declared.row_temperature,
        signs.declared.sampler,
        signs.declared.trainer,
    )
    stated = {
        "sampled": declared if declared is not None else sampler.sampling_temperature,
        signs.case.sampler: sampler.temperature,
        signs.case.trainer or "": trainer.temperature,
    }
    known = {name: value for name, value in stated.items() if value is not None}
    if not known:
        return []
    reads = "different" if len(set(known.values())) > 1 else "the table says so"
    return [fact("temperature, by column and metadata", reads, **known)]


def _temperature_sentence(slug: str, estimate: float, stated: float | None, signs: Signs) -> str:
    """Say which side has which temperature: the stated one where the log-probs agree with it."""
    sampler, trainer = f"`{signs.case.sampler}`", f"`{signs.case.trainer}`"
    value = f"{estimate:.2f}"
    if stated is not None:
        value = f"{stated:g} (the log-probs give {estimate:.2f})"
    if slug == "temperature-raw-recorded":
        return (
            f"Tokens were sampled at temperature {value}, as {trainer} has it; {sampler} "
            "was recorded before the temperature was applied."
        )
    if slug == "sampler-ignores-temperature":
        return (
            f"{trainer} divides its logits by a temperature of {value}, at which the sampler did "
            "not sample."
        )
    return (
        f"{sampler} is of a law at temperature {value}, {trainer} of the law at 1: the "
        "trainer does not divide its logits by the temperature."
    )


def _divided(signs: Signs) -> Suspicion | None:
    """Look for log-probs that were divided by the temperature and not normalised again."""
    if not usable(signs) or signs.law.rms < VISIBLE:
        return None
    law, tokens = signs.law, signs.case.tokens
    k, left = law.proportion
    but_for_noise = left < 0.01 and law.left_by_proportion < LEFT_BY_FACTOR
    if abs(k - 1) > 0.04 and (left < 3e-4 or but_for_noise):
        return Suspicion(
            confidence=0.9,
            message=f"Recorded log-probs are {k:.3f} times the trainer's throughout: log-probs "
            "were divided by a temperature, which leaves no law that sums to 1.",
            evidence=[
                fact("sampler = k * trainer", "a factor and nothing else", k=k, squares_left=left)
            ],
            also_possible=["log-base"],
        )
    # Two tokens of one context share the sum: what parts them is the same on both sides.
    if signs.forks is not None and signs.forks.apart > ROUNDING:
        return None
    # The sum is e^((1 - 1/T) H) for a Renyi entropy H, which is of the size of the surprisal.
    if abs(float(law.log_ratio.mean())) > MOST_OF_SURPRISAL * -float(tokens.sampler.mean()):
        return None
    if float(tokens.trainer.max()) > 0:
        return None
    (mean, z), (_, inverse_z) = law.ratio_mean, law.inverse_mean
    if law.one_sided < 0.98 or abs(z) < BROKEN or abs(inverse_z) < BROKEN:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = tokens.sampler / tokens.trainer
    sure = ratio[(tokens.trainer > -0.1) & (tokens.trainer < -0.005)]
    if len(sure) < 15:
        return None
    low, high = np.quantile(sure, [0.05, 0.95])
    if not ((mean < 1 and high < 0.75 and low > 0.002) or (mean > 1 and low > 1.4)):
        return None
    if not _tied_to_surprisal(law):
        return None  # what stands in the sum beside the tokens does not know how sure they are
    declared = signs.declared.row_temperature
    return Suspicion(
        confidence=0.92 if declared not in (None, 1.0) else 0.88,
        message=f"E[ratio] is {mean_ratio(mean)} and every log-ratio has one sign: the trainer "
        "divided log-probs, not logits, by the temperature, so that its law does not sum to 1.",
        evidence=[
            fact("E[ratio]", "the trainer's law does not sum to 1", value=mean, z=z),
            fact(
                "log-prob of sure tokens, sampler / trainer",
                "a log-sum in every context",
                low=float(low),
                high=float(high),
            ),
        ],
        side="trainer",
        also_possible=["vocabulary-padding"] if mean < 1 else ["vocab-shard-wrong"],
    )


def _tied_to_surprisal(law: Law) -> bool:
    """Tell whether the surer a token is, the less it is moved: a power of small rests vanishes."""
    sampler, moved = law.tokens.sampler, np.abs(law.log_ratio)
    sure = (sampler > -0.1) & (sampler < -1e-3) & (moved > 0)
    if sure.sum() < 20:
        return False
    surprisal, size = np.log(-sampler[sure]), np.log(moved[sure])
    return float(np.corrcoef(surprisal, size)[0, 1]) > TIED


def _as_under_a_cap(signs: Signs) -> bool:
    """Tell whether log-ratios of rare tokens lie on a line, and token ids do not explain them."""
    line = signs.law.rare_line
    return line is not None and line.explained >= 0.5 and signs.law.by_token_id.explained <= 0.3


def _softcap(signs: Signs) -> Suspicion | None:
    """Look for a law that is flatter than the other, unevenly: large gaps more than small ones."""
    if not usable(signs) or signs.law.rms < 0.03 or _temperature(signs) is not None:
        return None
    seen = tempered(signs.case.tokens)
    if seen is None or abs(signs.law.ratio_mean[1]) > BROKEN or signs.law.one_sided > 0.995:
        return None
    if not _as_under_a_cap(signs):
        return None
    flatter = "sampler" if seen.factor < 1 else "trainer"
    return Suspicion(
        confidence=0.85,
        message=f"The {flatter}'s law is flatter in every context, unevenly: log-probs of rare "
        f"tokens are up to {abs(1 - seen.factor):.0%} smaller and vary, as under a cap on logits.",
        evidence=[
            fact(
                "log-prob of rare tokens, sampler / trainer",
                "flatter, unevenly",
                ratio=seen.factor,
                spread=seen.spread,
            )
        ],
        side=flatter,
        also_possible=["trainer-without-temperature", "sampler-ignores-temperature"],
        verdict="broken",
    )


TEMPERATURES = (
    *(
        shipped(slug, "law", _temperature_cause(slug))
        for slug in (
            "temperature-raw-recorded",
            "trainer-without-temperature",
            "sampler-ignores-temperature",
        )
    ),
    shipped("log-probs-divided", "law", _divided),
    shipped("logit-softcap", "law", _softcap),
)
