"""Causes in the law of sampling: what was recorded is not what the tokens were drawn from."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from rcdiag.diagnosis.case import PairTokens
from rcdiag.diagnosis.causes.cause import Suspicion, fact, shipped
from rcdiag.diagnosis.signs import Law, Signs
from rcdiag.diagnosis.signs.tempered import Tempered, tempered

# Below this rms log-ratio a law cannot be told from the noise of engines.
VISIBLE = 0.012
# A mean of ratios is not 1 beyond so many clustered standard errors.
BROKEN, HOLDS = 4.0, 3.5


def _usable(signs: Signs) -> bool:
    return len(signs.case.tokens) >= 400


def _temperature(signs: Signs) -> tuple[str, Tempered, str] | None:
    """Return which fault of temperature there is, its estimate, and what tells it."""
    if not _usable(signs) or signs.law.rms < VISIBLE or one_sided(signs.law) > 0.995:
        return None
    seen = tempered(signs.case.tokens)
    if seen is None or signs.law.by_token_id[1] > 0.8:
        return None
    declared = signs.declared.row_temperature
    ratio_z, inverse_z = signs.law.ratio_mean[1], signs.law.inverse_mean[1]
    if declared == 1.0 and not signs.declared.sampler.sampling_temperature:
        return None  # every row was sampled at 1: another law that flattens
    if declared is None and seen.spread > 1.1 and abs(ratio_z) < BROKEN:
        return None  # a cap on logits flattens too, unevenly
    if abs(ratio_z) > BROKEN and abs(inverse_z) < HOLDS:
        return "temperature-raw-recorded", seen, "E[1 / ratio] is 1 and E[ratio] is not"
    if abs(ratio_z) > 2.5 and abs(ratio_z) > 4 * abs(inverse_z):
        return "temperature-raw-recorded", seen, "E[1 / ratio] is nearer to 1 than E[ratio]"
    if abs(ratio_z) > BROKEN + 2 and abs(ratio_z) > 3 * abs(inverse_z):
        return "temperature-raw-recorded", seen, "E[1 / ratio] is nearer to 1 than E[ratio]"
    if abs(ratio_z) > 2 * BROKEN:
        return None
    side, trained = signs.declared.sampler, signs.declared.trainer.temperature
    if trained is not None and side.sampling_temperature == trained != side.temperature is not None:
        return "temperature-raw-recorded", seen, "metadata: recorded at another temperature"
    if declared is not None and declared != 1.0:
        log_factor = np.log(seen.factor) / np.log(declared)
        if log_factor > 0:
            return "sampler-ignores-temperature", seen, "the trainer's law is the recorded one at T"
        return "trainer-without-temperature", seen, "the recorded law is the trainer's at T"
    return "trainer-without-temperature", seen, "the recorded law is the trainer's at another T"


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
        known = declared is not None and declared != 1.0
        stated = declared if agrees else None
        confidence = 0.97 if agrees else 0.9 if known else 0.8
        return Suspicion(
            confidence=confidence if slug == "temperature-raw-recorded" or known else 0.75,
            message=_temperature_sentence(slug, estimate, stated, signs),
            evidence=[
                *_stated_temperatures(signs),
                fact(
                    "log-prob of rare tokens, sampler / trainer",
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
            also_possible=[] if known else _other_temperatures(slug),
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


def one_sided(law: Law) -> float:
    """Return the share of squared log-ratios that is on the side of their mean."""
    squares = law.log_ratio**2
    total = float(squares.sum())
    negative = float(squares[law.log_ratio < 0].sum())
    return max(negative, total - negative) / total if total > 0 else 0.5


def _divided(signs: Signs) -> Suspicion | None:
    """Look for log-probs that were divided by the temperature and not normalised again."""
    if not _usable(signs) or signs.law.rms < VISIBLE:
        return None
    law, tokens = signs.law, signs.case.tokens
    k, left = law.proportion
    if left < 3e-4 and abs(k - 1) > 0.04:
        return Suspicion(
            confidence=0.9,
            message=f"Recorded log-probs are {k:.3f} times the trainer's throughout: log-probs "
            "were divided by a temperature, which leaves no law that sums to 1.",
            evidence=[
                fact("sampler = k * trainer", "a factor and nothing else", k=k, squares_left=left)
            ],
            also_possible=["log-base"],
        )
    (mean, z), (_, inverse_z) = law.ratio_mean, law.inverse_mean
    if one_sided(law) < 0.98 or abs(z) < BROKEN or abs(inverse_z) < BROKEN:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = tokens.sampler / tokens.trainer
    sure = ratio[(tokens.trainer > -0.1) & (tokens.trainer < -0.005)]
    if len(sure) < 15:
        return None
    low, high = np.quantile(sure, [0.05, 0.95])
    if not ((mean < 1 and high < 0.75 and low > 0.002) or (mean > 1 and low > 1.4)):
        return None
    declared = signs.declared.row_temperature
    return Suspicion(
        confidence=0.92 if declared not in (None, 1.0) else 0.85,
        message=f"E[ratio] is {mean:.3f} and every log-ratio has one sign: the trainer divided "
        "log-probs, not logits, by the temperature, so that its law does not sum to 1.",
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


def _renormalised(law: Law) -> bool:
    """Tell whether ratios are only below 1, and bounded, as where the sampler lacks a part."""
    (_, z), (inverse, inverse_z) = law.ratio_mean, law.inverse_mean
    low, high = np.quantile(law.log_ratio, [0.001, 0.999])
    if z > -BROKEN or inverse_z < BROKEN or inverse > 1.45 or low < -3.5:
        return False
    return one_sided(law) >= 0.9 and high <= max(0.12, 0.35 * abs(low))


def _kept_set(signs: Signs) -> Suspicion | None:
    """Look for a law that was renormalised over a kept set, at all positions."""
    if not _usable(signs) or not _renormalised(signs.law) or _end_banned(signs) is not None:
        return None
    law = signs.law
    mean, z = law.ratio_mean
    low, high = np.quantile(law.log_ratio, [0.001, 0.999])
    return Suspicion(
        confidence=0.9,
        message=f"Recorded log-probs are renormalised over a kept set: E[ratio] is {mean:.4f} "
        f"({z:+.0f} standard errors from 1), log-ratios are at most noise above 0 and at least "
        f"{low:.2f}.",
        evidence=[
            fact("E[ratio]", "the mean mass that the kept set holds", value=mean, z=z),
            fact(
                "log-ratios from and to", "one sign and bounded", low=float(low), high=float(high)
            ),
        ],
        also_possible=[
            "top-p-renormalised",
            "top-k-renormalised",
            "min-p-renormalised",
            "vocabulary-padding",
        ],
    )


def _declared_kept_set(signs: Signs) -> str | None:
    """Return which kept set the table's columns declare; None where none."""
    facts = signs.case.facts
    for slug, values, acts in (
        ("top-p-renormalised", facts.top_p, lambda v: v < 1.0),
        ("top-k-renormalised", facts.top_k, lambda v: v > 0),
        ("min-p-renormalised", facts.min_p, lambda v: v > 0.0),
    ):
        if values is not None and np.isfinite(values).any():
            known = values[np.isfinite(values)]
            if float(np.mean(acts(known))) > 0.9:
                return slug
    return None


def _truncated(slug: str):
    def weigh(signs: Signs) -> Suspicion | None:
        suspicion = _kept_set(signs)
        if suspicion is None or (_declared_kept_set(signs) or "truncated-law") != slug:
            return None
        return suspicion

    return weigh


def _end_banned(signs: Signs) -> Suspicion | None:
    """Look for a kept set that lacks something up to a position, and nothing after it."""
    law, tokens = signs.law, signs.case.tokens
    mean, z = law.ratio_mean
    low = float(np.quantile(law.log_ratio, 0.001))
    if low > -0.05 or law.first_tokens > 3 or not _renormalised(law):
        return None
    # Where contexts differ some tokens gain as well, and the first ones lose most.
    if float(np.quantile(law.log_ratio, 0.999)) > 0.2 or law.first_tokens > 3:
        return None
    strong = law.log_ratio < 0.3 * low
    if not _falls_silent(tokens, strong):
        return None
    places = np.sort(tokens.position[strong])
    last_place = int(places[int(0.98 * (len(places) - 1))])
    return Suspicion(
        confidence=0.8,
        message=f"Up to position {last_place} the sampler's law lacks something that the trainer's "
        f"has, by up to {-low:.2f} nats, and nothing after it: the end token was banned there.",
        evidence=[
            fact("E[ratio]", "mass that the sampler could not take", value=mean, z=z),
            fact(
                "negative log-ratios",
                "up to a position alone",
                share=float(strong.mean()),
                last_position=last_place,
            ),
        ],
        also_possible=["logit-bias", "penalty"],
    )


def _banned(signs: Signs) -> tuple[str, Suspicion] | None:
    """Look for contexts in which the sampler could not take what the trainer expects."""
    if not _usable(signs):
        return None
    early = _end_banned(signs)
    if early is not None:
        return "min-tokens", early
    law, tokens = signs.law, signs.case.tokens
    mean, z = law.ratio_mean
    low, high = np.quantile(law.log_ratio, [0.001, 0.999])
    if z > -BROKEN or low > -3.0 or high > 0.16 or law.first_tokens > 3:
        return None
    strong = law.log_ratio < -1.0
    share = float(strong.mean())
    if share > 0.2 or one_sided(law) < 0.97:
        return None
    # The end token is banned up to a length: nothing happens after it.
    last_place = float(tokens.position[strong].max())
    beyond = float(np.mean(tokens.position > last_place))
    slug = "min-tokens" if beyond > 0.03 and _falls_silent(tokens, strong) else "logit-bias"
    return slug, Suspicion(
        confidence=0.75,
        message=f"At {share:.2%} of the tokens the trainer expects something else by "
        f"{-float(np.median(law.log_ratio[strong])):.1f} nats, and nowhere the reverse: the "
        "sampler was kept from the token that was due"
        + (f", at positions up to {int(last_place)}." if slug == "min-tokens" else "."),
        evidence=[
            fact("E[ratio]", "mass that the sampler could not take", value=mean, z=z),
            fact(
                "strongly negative log-ratios",
                "tokens in place of a banned one",
                share=share,
                last_position=int(last_place),
            ),
        ],
        also_possible=["logit-bias" if slug == "min-tokens" else "min-tokens", "penalty"],
    )


def _falls_silent(tokens: PairTokens, strong: np.ndarray) -> bool:
    """Tell whether strong log-ratios end at a position long before responses do."""
    places = np.sort(tokens.position[strong])
    if len(places) < 10:
        return False
    edge = places[int(0.98 * (len(places) - 1))]
    after = tokens.position > edge
    return bool(after.sum() > 100 and strong[after].mean() < 0.1 * strong[~after].mean())


def _ban(slug: str):
    def weigh(signs: Signs) -> Suspicion | None:
        banned = _banned(signs)
        return banned[1] if banned is not None and banned[0] == slug else None

    return weigh


def _penalty(signs: Signs) -> Suspicion | None:
    """Look for a law that depends on whether a token has occurred."""
    if not _usable(signs) or signs.law.rms < VISIBLE or signs.law.rms > 1.0:
        return None
    law = signs.law
    gap, z = _repeated_less_new(law)
    if z < 3.5 or law.tail_share > 0.13 or abs(law.ratio_mean[1]) > 2 * BROKEN:
        return None
    unsure = (law.tokens.trainer < -0.05) & (np.abs(law.log_ratio) > max(0.01, 0.1 * law.rms))
    again, new = (law.log_ratio[unsure & part] for part in (law.repeated, ~law.repeated))
    # Repeated tokens lose and new ones win, in nearly every context.
    if len(again) < 30 or len(new) < 30 or np.mean(again > 0) < 0.7 or np.mean(new < 0) < 0.53:
        return None
    if law.by_token_id[1] > 0.6:
        return None
    return Suspicion(
        confidence=0.85,
        message="The sampler gives tokens that occurred before less than the trainer does: their "
        f"log-ratio is {gap:.3f} nats above that of new ones that are as likely ({z:.0f} standard "
        "errors).",
        evidence=[
            fact(
                "log-ratio of repeated less that of new tokens",
                "a penalty for repetition or presence",
                gap=gap,
                z=z,
            )
        ],
        also_possible=["repetition-penalty", "presence-penalty", "logit-bias"],
    )


# Tokens are compared with others that are about as likely for the trainer.
LIKE = (-16.0, -4.0, -2.0, -1.0, -0.5, -0.2, -0.05)


def _repeated_less_new(law: Law) -> tuple[float, float]:
    """Return the mean log-ratio of repeated less that of new tokens of like log-prob, and its z."""
    gaps, weights = [], []
    for low, high in pairwise(LIKE):
        inside = (law.tokens.trainer > low) & (law.tokens.trainer <= high)
        again, new = law.log_ratio[inside & law.repeated], law.log_ratio[inside & ~law.repeated]
        if len(again) < 8 or len(new) < 8:
            continue
        gaps.append(float(again.mean() - new.mean()))
        weights.append(1.0 / (again.var() / len(again) + new.var() / len(new) + 1e-12))
    if not gaps:
        return 0.0, 0.0
    total = float(np.sum(weights))
    gap = float(np.dot(gaps, weights)) / total
    return gap, gap * total**0.5


def _pushed(signs: Signs) -> Suspicion | None:
    """Look for few token ids that the sampler pushes by a constant, all else being honest."""
    if not _usable(signs) or signs.law.rms < VISIBLE:
        return None
    law, tokens = signs.law, signs.case.tokens
    correlation, explained = law.by_token_id
    unsure = np.abs(law.log_ratio[tokens.trainer < -0.05])
    if len(unsure) < 100 or explained < 0.25 or correlation < 0.9 or law.first_tokens > 4:
        return None
    typical = float(np.median(unsure))
    if law.rms > 0.6 or law.inverse_mean[0] > 2.0:
        return None
    if typical > 0.016 or typical > 0.15 * law.rms:
        return None
    return Suspicion(
        confidence=0.7,
        message=f"Half of the unsure tokens differ by less than {typical:.2g} nats, and few token "
        f"ids by much, always alike: the id explains {explained:.0%} of the variance, as when the "
        "sampler pushes some tokens.",
        evidence=[
            fact(
                "variance explained by the token id",
                "few ids",
                explained=explained,
                typical_log_ratio=typical,
            )
        ],
        also_possible=["tied-head-desync", "penalty"],
    )


def _vocab_shard(signs: Signs) -> Suspicion | None:
    """Look for a trainer whose sum over the vocabulary lacks a part, or whose head does."""
    if not _usable(signs):
        return None
    law = signs.law
    (mean, z), (inverse, inverse_z) = law.ratio_mean, law.inverse_mean
    block = _id_block(signs)
    missing = z > BROKEN and inverse_z < -BROKEN and one_sided(law) > 0.9
    if not missing and block is None:
        return None
    message = (
        f"E[ratio] is {mean:.3f} and E[1 / ratio] {inverse:.3f}: the trainer's law sums to more "
        "than 1, as when a part of the vocabulary is left out of the sum."
        if missing
        else f"Token ids {block[0]} to {block[1]} have far too low log-probs and no others: a part "
        "of the vocabulary is wrong."
        if block
        else ""
    )
    return Suspicion(
        confidence=0.8,
        message=message,
        evidence=[
            fact(
                "E[ratio] and E[1 / ratio]",
                "the trainer's law does not sum to 1",
                ratio=mean,
                ratio_z=z,
                inverse=inverse,
                inverse_z=inverse_z,
            )
        ],
        side="trainer",
        also_possible=["vocabulary-padding", "shard-wrong", "truncated-law"],
    )


def _id_block(signs: Signs) -> tuple[int, int] | None:
    """Return the range of ids in which nearly every id, and outside hardly one, is far too low."""
    tokens, law = signs.case.tokens, signs.law
    counts = np.bincount(tokens.token_id)
    means = np.bincount(tokens.token_id, law.log_ratio) / np.maximum(counts, 1)
    seen = np.flatnonzero(counts >= 2)
    bad = seen[means[seen] < -3.0]
    if len(bad) < 5 or len(seen) < 40:
        return None
    first, last = np.quantile(bad, [0.05, 0.95])
    inside = seen[(seen >= first) & (seen <= last)]
    wide = (last - first) / max(int(seen.max()), 1)
    if wide > 0.3 or np.mean(means[inside] < -3.0) < 0.85 or len(inside) < 0.8 * len(bad):
        return None
    return int(bad.min()), int(bad.max())


def _softcap(signs: Signs) -> Suspicion | None:
    """Look for a law that is flatter than the other, unevenly: large gaps more than small ones."""
    if not _usable(signs) or signs.law.rms < 0.03 or _temperature(signs) is not None:
        return None
    seen = tempered(signs.case.tokens)
    if seen is None or abs(signs.law.ratio_mean[1]) > BROKEN or signs.law.by_token_id[1] > 0.3:
        return None
    line = signs.law.rare_line
    if one_sided(signs.law) > 0.995 or line is None or line.explained < 0.5:
        return None
    flatter = "sampler" if seen.factor < 1 else "trainer"
    return Suspicion(
        confidence=0.75,
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
        verdict="fix",
    )


def _silent(signs: Signs) -> tuple[str, Suspicion] | None:
    """Look for a law of sampling that neither column shows, by metadata, entropies or re-scores.

    Entropies settle it, where the table has them: surprisal and entropy agree for the law that
    sampled.
    """
    if not _usable(signs) or signs.law.rms > 0.05:
        return None
    stated = _silent_by_metadata(signs)
    if stated is not None:
        return stated
    excess = _surprisal_less_entropy(signs)
    if excess is not None:
        return _silent_by_entropy(signs, *excess)
    return _silent_by_kept_set(signs) or _silent_by_rescore(signs)


def _silent_by_metadata(signs: Signs) -> tuple[str, Suspicion] | None:
    side = signs.declared.sampler
    if side.temperature is None or side.sampling_temperature in (None, side.temperature):
        return None
    return "temperature-silent", Suspicion(
        confidence=0.95,
        message=f"Metadata says that tokens were sampled at temperature "
        f"{side.sampling_temperature:g}; both columns are of temperature {side.temperature:g}.",
        evidence=[
            fact(
                "temperature",
                "sampling and record differ",
                sampled=side.sampling_temperature,
                recorded=side.temperature,
            )
        ],
    )


def _surprisal_less_entropy(signs: Signs) -> tuple[float, float] | None:
    """Return the mean of -log p less the entropy, in nats, and its z; None without entropies."""
    case = signs.case
    for name in (case.trainer, case.sampler):
        entropy = case.entropy.get(name or "")
        if entropy is None:
            continue
        tokens = case.tokens
        own = tokens.trainer if name == case.trainer else tokens.sampler
        excess = -own - entropy[tokens.place]
        usable = np.isfinite(excess)
        if usable.sum() >= 400:
            return float(excess[usable].mean()), tokens.z(np.where(usable, excess, 0.0))
    return None


def _silent_by_entropy(signs: Signs, mean: float, z: float) -> tuple[str, Suspicion] | None:
    if abs(z) < 5.0:
        return None
    top_p = signs.case.facts.top_p
    cut = top_p is not None and bool(np.any(top_p < 1.0))
    slug = "top-p-silent" if cut and z < 0 else "temperature-silent"
    return slug, Suspicion(
        confidence=0.85,
        message=f"Sampled tokens are {'likelier' if mean < 0 else 'less likely'} than those of "
        f"the recorded law by {abs(mean):.3f} nats on the mean ({z:+.0f} standard errors), "
        "while both columns agree: tokens were drawn from another law.",
        evidence=[fact("surprisal less entropy", "0 if the law sampled", mean=mean, z=z)],
        also_possible=["top-p-silent" if slug == "temperature-silent" else "temperature-silent"],
    )


def _silent_by_kept_set(signs: Signs) -> tuple[str, Suspicion] | None:
    """Look for rows that say that a share of the law was kept, of which no mass is missing."""
    law = signs.law
    if _declared_kept_set(signs) != "top-p-renormalised" or abs(law.ratio_mean[1]) >= HOLDS:
        return None
    top_p = signs.case.facts.top_p
    value = float(np.nanmedian(top_p)) if top_p is not None else 1.0
    return "top-p-silent", Suspicion(
        confidence=0.85,
        message=f"Rows say that they were sampled with top-p {value:g}; E[ratio] is "
        f"{law.ratio_mean[0]:.4f}, so both columns are of the whole law.",
        evidence=[
            fact(
                "E[ratio]",
                "no mass is missing from the record",
                value=law.ratio_mean[0],
                z=law.ratio_mean[1],
            ),
            fact("top_p of the rows", "the table says so", declared=value),
        ],
    )


def _silent_by_rescore(signs: Signs) -> tuple[str, Suspicion] | None:
    """Look for two columns that agree, and a re-score at the rows' temperature that does not."""
    case, honest = signs.case, _honest_trainer(signs)
    if honest is None:
        return None
    seen = tempered(signs.between(case.sampler, honest).tokens)
    between = signs.between(str(case.trainer), honest)
    if seen is None or between.rms <= max(3 * signs.law.rms, VISIBLE):
        return None
    return "temperature-silent", Suspicion(
        confidence=0.92,
        message=f"`{case.sampler}` and `{case.trainer}` agree, and `{honest}`, scored at "
        f"the rows' temperature, is their law at T = {seen.factor:.2f}: tokens were "
        "sampled at a temperature that neither column has.",
        evidence=[
            fact(
                "log-prob of rare tokens against the re-score",
                "a temperature",
                ratio=seen.factor,
            )
        ],
    )


def _honest_trainer(signs: Signs) -> str | None:
    """Return a policy of the table that was scored anew with the trainer's model."""
    return signs.rescored[1]


def _silence(slug: str):
    def weigh(signs: Signs) -> Suspicion | None:
        silent = _silent(signs)
        return silent[1] if silent is not None and silent[0] == slug else None

    return weigh


SAMPLING = (
    *(
        shipped(slug, "law", _temperature_cause(slug))
        for slug in (
            "temperature-raw-recorded",
            "trainer-without-temperature",
            "sampler-ignores-temperature",
        )
    ),
    shipped("log-probs-divided", "law", _divided),
    *(
        shipped(slug, "law", _truncated(slug))
        for slug in (
            "truncated-law",
            "top-p-renormalised",
            "top-k-renormalised",
            "min-p-renormalised",
        )
    ),
    shipped("logit-bias", "law", lambda signs: _ban("logit-bias")(signs) or _pushed(signs)),
    shipped("min-tokens", "law", _ban("min-tokens")),
    shipped("penalty", "law", _penalty),
    shipped("vocab-shard-wrong", "law", _vocab_shard),
    shipped("logit-softcap", "law", _softcap),
    *(shipped(slug, "law", _silence(slug)) for slug in ("temperature-silent", "top-p-silent")),
)
