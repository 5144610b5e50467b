"""The two sides have different weights: older ones, a part of them, another policy's."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Array, Case, Counts, rms
from rcdiag.diagnosis.causes.cause import (
    CLEAR,
    EXACT,
    GUESS,
    LIKELY,
    WEAK,
    Suspicion,
    by_token_fact,
    fact,
    shipped,
)
from rcdiag.diagnosis.causes.noise import is_engine_noise
from rcdiag.diagnosis.features import ENGINE_NOISE, Features, LogRatios
from rcdiag.diagnosis.thresholds import (
    BY_ITS_ERROR,
    COARSE,
    FEW,
    FEWEST,
    FEWEST_OF_PATTERN,
    HALF,
    LARGER,
    MOST,
    MUCH_LARGER,
    ONE_SIDED,
    RELATED,
    SAME,
    SURELY,
    TINY,
)
from rcdiag.diagnosis.validity import INVALID
from rcdiag.formats import rough, share_of

# After a drift of weights, token ids explain more than EXPLAINED of the variance of log-ratios,
# whose rms is below LARGEST_DRIFT, nats.
EXPLAINED, LARGEST_DRIFT = 0.08, 0.5
# The step that the name of weights ends with, as `ckpt/step_40`.
STEP_OF_WEIGHTS = re.compile(r"(?:step|iter|checkpoint|ckpt)[_-]?(\d+)/?$")


def declared_weights(features: Features) -> Suspicion | None:
    """Look for declared weights that differ: older ones of the trainer, else the sampler's."""
    declared = features.declared
    if not declared.weights_differ or features.log_ratios.rms < ENGINE_NOISE:
        return None
    sampler, trainer = declared.sampler, declared.trainer
    steps = [STEP_OF_WEIGHTS.search(side.model or "") for side in (sampler, trainer)]
    if steps[0] and steps[1] and int(steps[1][1]) < int(steps[0][1]):
        return _older_trainer(features, int(steps[0][1]), int(steps[1][1]))
    return Suspicion(
        slug="stale-weights",
        confidence=EXACT,
        message="The sampler's weights are not the trainer's: "
        f"`{features.case.sampler}` was scored with {_model(sampler.model)}, "
        f"`{features.case.trainer}` with {_model(trainer.model)}.",
        evidence=[
            fact(
                "weights fingerprint",
                "different",
                **{
                    features.case.sampler: _short(sampler.weights),
                    str(features.case.trainer): _short(trainer.weights),
                },
            )
        ],
        also_possible=["partial-sync", "reference-as-old"],
    )


def _older_trainer(features: Features, sampler: int, trainer: int) -> Suspicion:
    """Report a trainer's column whose weights are of an earlier step than the sampler's."""
    declared = features.declared
    return Suspicion(
        slug="reference-as-old",
        confidence=CLEAR,
        message=f"`{features.case.trainer}` was scored with {_model(declared.trainer.model)}, "
        f"older weights than the sampler's "
        f"({_model(declared.sampler.model)}): the column is that of another policy, such as the "
        "reference.",
        evidence=[
            fact(
                "step in the name of the weights",
                "the trainer's are older than the sampler's",
                **{features.case.sampler: sampler, str(features.case.trainer): trainer},
            )
        ],
        also_possible=["stale-weights"],
    )


def _stale_weights(features: Features) -> Suspicion | None:
    if (stated := declared_weights(features)) is not None:
        return stated if stated.slug == "stale-weights" else None
    return _lagging(features)


def lags(case: Case) -> Array | None:
    """Return step minus policy_version, as the mean over each row's tokens; None where unknown.

    Trainers count versions from different origins: only differences between lags are evidence.
    """
    version, step = case.facts.policy_version, case.facts.step
    if version is None or step is None:
        return None
    if not case.facts.version_by_token:
        return (step - version).astype(np.float64)
    lag = (step[case.owner] - version).astype(np.float64)
    values: Array = np.bincount(case.owner, lag, len(step)) / np.maximum(case.lengths, 1)
    return values


def _lagging(features: Features) -> Suspicion | None:
    """Look for log-ratios that grow with the lag of the weights that sampled a row."""
    lag = lags(features.case)
    if lag is None or features.declared.weights_agree or features.validity.answer == INVALID:
        return None
    known = features.case.tokens.per_row > 0
    behind = lag[known]
    least, most = float(behind.min()), float(behind.max())
    if least == most:
        return _all_behind(features, least, most, lag[~known])
    step = features.case.facts.step
    assert step is not None
    steps = step[known].astype(np.float64)
    growth, z = _growth(features.location.rms_of_rows[known], behind, steps)
    if z < SURELY or growth < LARGER:
        return _all_behind(features, least, most, lag[~known])
    older = behind > least
    return Suspicion(
        confidence=CLEAR,
        message="The sampler's weights are behind the trainer's: log-ratios grow with the age of "
        f"the weights that sampled (step less policy_version), {growth:.2g} times over "
        f"{rough(most - least)} updates.",
        evidence=[
            fact("rms log-ratio by age", "grows with the age", **_rms_by_age(features.case), z=z)
        ],
        share_of_rows=float(older.mean()),
        also_possible=["weights-never-synced", "in-flight-update"],
    )


def _rms_by_age(case: Case) -> dict[str, float]:
    """Return the rms log-ratio, nats, of the tokens of each age, the youngest first.

    Versions may be counted from another origin than steps: only differences of ages are known.
    """
    version, step = case.facts.policy_version, case.facts.step
    assert version is not None
    assert step is not None
    tokens = case.tokens
    of_token = version[tokens.place if case.facts.version_by_token else tokens.owner]
    age = step[tokens.owner] - of_token
    return {
        f"{value - age.min():+d} updates": round(rms(tokens.log_ratio[age == value]), 4)
        for value in np.unique(age)[:8]
    }


def _growth(rms: Array, lag: Array, step: Array) -> tuple[float, float]:
    """Return the growth factor of the rows' rms over the range of lags, and the z of the slope.

    Least squares of log rms on lag and step with heteroscedasticity-robust errors; the logarithm
    limits the influence of a few large rows. A mismatch that moves with the step alone is not one
    of the lag. Where lag and step cannot be separated, the lag counts if it can be one: 0 or more.
    (1, 0) if fewer than two lags have enough rows.
    """
    counts = np.unique(lag, return_counts=True)[1]
    if (counts >= FEWEST_OF_PATTERN).sum() < 2:
        return 1.0, 0.0
    size = np.log(np.maximum(rms, 1e-6))
    centred, rest = _without_trend(lag, step), _without_trend(size, step)
    if centred @ centred < FEW * np.var(lag) * len(lag):
        if lag.min() < 0.0:
            return 1.0, 0.0
        centred, rest = lag - lag.mean(), size - size.mean()
    slope = float(centred @ rest / (centred @ centred))
    residual = rest - slope * centred
    error = float(np.sqrt(np.sum((centred * residual) ** 2)) / (centred @ centred))
    growth = float(np.exp(np.clip(slope * (lag.max() - lag.min()), -50.0, 50.0)))
    return growth, slope / max(error, TINY)


def _without_trend(values: Array, step: Array) -> Array:
    """Return what a linear trend over the steps leaves of values; all [rows]."""
    centred, steps = values - values.mean(), step - step.mean()
    left: Array = centred - steps * (steps @ centred) / max(float(steps @ steps), TINY)
    return left


def _all_behind(features: Features, least: float, most: float, before: Array) -> Suspicion | None:
    """Weigh weights that lag in all rows, where the mismatch does not show how much.

    Where the mismatch began at a step, the lags `before` that step show whether it began with the
    lag. Otherwise no rows have current weights to compare with: a lag of one may be another way to
    count versions (`one_behind`), and for a larger one the evidence is a mismatch above rounding
    that has no other structure. Where lags differ, it must depend on the token id.
    """
    log_ratios = features.log_ratios
    since = features.onset is not None and len(before) > 0 and float(before.max()) < least
    if (
        least < 1
        or (most <= 1 and not since)
        or (least < most and not looks_like_other_weights(log_ratios))
        or is_engine_noise(features)
        or log_ratios.first_tokens > MUCH_LARGER
    ):
        return None
    updates = "update" if most == 1 else "updates"
    behind = f"{least:g}" if least == most else f"{least:g} to {most:g}"
    where = "in every row from there on, and less before" if since else "in every row"
    return Suspicion(
        confidence=CLEAR if since or looks_like_other_weights(log_ratios) else WEAK,
        message=f"By `policy_version` and `step` the sampler's weights are {behind} {updates} "
        f"behind {where}; the two sides differ by {log_ratios.rms:.2g} nats rms.",
        evidence=[
            fact("step less policy_version", "weights of earlier steps", least=least, most=most),
            features.validity.evidence,
        ],
        also_possible=["weights-differ", "weights-never-synced", "forwards-differ"],
    )


def one_behind(features: Features) -> str:
    """Say that versions are one behind the step in every row; empty where they are not.

    No row with another lag shows whether that is an older version or another origin of the count.
    """
    lag = lags(features.case)
    if lag is None or features.onset is not None or features.declared.weights_agree:
        return ""
    if not np.all(lag[features.case.tokens.per_row > 0] == 1.0):
        return ""
    return (
        " By `policy_version` every row's weights are 1 step behind, or versions count from "
        "another origin."
    )


def _model(name: str | None) -> str:
    return name or "weights that have no name"


def _short(fingerprint: object) -> str:
    return fingerprint[:8] if isinstance(fingerprint, str) else "several"


def _never_synced(features: Features) -> Suspicion | None:
    """Detect a mismatch that grows over the steps: the sampler may keep its first weights."""
    parts, log_ratios, onset = features.location.by_step, features.log_ratios, features.onset
    directed = log_ratios.by_token_id.correlation > RELATED
    if (
        log_ratios.one_sided > ONE_SIDED
        or features.validity.answer == INVALID
        or features.location.resets  # a mismatch of weights never synced does not fall back
        or features.declared.learning_rate == 0.0  # without updates no weights lag
    ):
        return None
    if onset is not None:
        parts = onset.steps
        later = parts.rms[onset.first :]
        # A single step shows no growth. After few synced ones, shifts by token id are of weights.
        single = onset.first < FEWEST_OF_PATTERN and directed
        grows = later[-1] > LARGER * later[0] if len(later) > 1 else single
        steadily = len(later) >= FEWEST_OF_PATTERN and float(np.mean(np.diff(later) > 0)) >= MOST
    elif (
        parts is not None
        and len(parts.labels) >= FEWEST_OF_PATTERN
        and parts.rms[-1] > 2 * ENGINE_NOISE
    ):
        rising = float(np.mean(np.diff(parts.rms) > 0)) >= MOST
        grows = steadily = rising and parts.rms[-1] > MUCH_LARGER * parts.rms[0]
    else:
        return None
    if parts is None or not grows:
        return None
    if onset is None:
        before = f"{parts.rms[0]:.2g} nats rms at step {parts.labels[0]}"
    else:
        usual = float(np.median(parts.rms[: onset.first]))
        before = f"{usual:.2g} nats rms, the median before step {onset.step},"
    return Suspicion(
        confidence=LIKELY if steadily and directed else WEAK if directed or steadily else GUESS,
        message=f"The mismatch grows from {before} to {parts.rms[-1]:.2g} at step "
        f"{parts.labels[-1]}: the sampler keeps the weights of an earlier step.",
        evidence=[
            fact(
                "rms log-ratio by step",
                "grows",
                **{
                    f"step_{step}": float(f"{rms:.2g}")
                    for step, rms in list(zip(parts.labels, parts.rms, strict=True))[-12:]
                },
            ),
            features.validity.evidence,
        ],
        also_possible=["stale-weights", "weights-differ"],
    )


def _replica(features: Features) -> Suspicion | None:
    parts, outliers = features.location.by_engine, features.location.outlier_rows
    if (
        parts is None
        or outliers is None
        or not outliers.engines
        or Features(features.case.take(outliers.rows)).validity.answer == INVALID
    ):
        return None
    return Suspicion(
        confidence=EXACT,
        message=f"Rows of {outliers.which} differ by "
        f"{outliers.rms:.2g} nats rms, those of the others by {outliers.rms_of_others:.2g}: that "
        "replica has other weights.",
        evidence=[
            fact(
                "rms log-ratio by engine",
                "one engine differs",
                **dict(zip(parts.labels, np.round(parts.rms, 5).tolist(), strict=True)),
            )
        ],
        share_of_rows=float(outliers.rows.mean()),
        also_possible=["stale-weights", "weights-differ"],
    )


def _in_flight(features: Features) -> Suspicion | None:
    """Look for rows whose tokens were sampled by several versions of the weights."""
    facts, log_ratios = features.case.facts, features.log_ratios
    if not facts.version_by_token or facts.policy_version is None or log_ratios.rms < ENGINE_NOISE:
        return None
    tokens = features.case.tokens
    version = facts.policy_version[tokens.place]
    same_row = np.diff(tokens.owner, prepend=-1) == 0
    changes = same_row & (np.diff(version, prepend=version[:1]) != 0)
    if len(np.unique(tokens.owner[changes])) < FEWEST_OF_PATTERN:
        return None
    # Rows that ended before the weights changed are of older versions as well.
    step = np.zeros(tokens.rows, np.int64) if facts.step is None else facts.step
    _, part = np.unique(step[tokens.owner], return_inverse=True)
    newest = np.full(int(part.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(newest, part, version)
    old = version < newest[part]
    if min(old.sum(), (~old).sum()) < FEWEST:
        return None
    before, after = rms(log_ratios.values[old]), rms(log_ratios.values[~old])
    rows = len(np.unique(tokens.owner[old])) / max(int((tokens.per_row > 0).sum()), 1)
    if before < LARGER * after and after < LARGER * before:
        return None
    return Suspicion(
        confidence=CLEAR,
        message=f"In {share_of(rows)} the weights changed during sampling: tokens of "
        f"older versions differ by {before:.2g} nats rms, the others by {after:.2g}.",
        evidence=[
            fact(
                "rms log-ratio by version within rows",
                "changes with the version",
                older=before,
                newest=after,
            )
        ],
        share_of_rows=rows,
        also_possible=["stale-weights"],
    )


def looks_like_other_weights(log_ratios: LogRatios) -> bool:
    """Tell whether log-ratios depend on the token id, as after a drift of weights."""
    seen = log_ratios.by_token_id
    return (
        seen.correlation > SAME
        and seen.beyond_chance
        and seen.explained > EXPLAINED
        and log_ratios.rms < LARGEST_DRIFT
        and log_ratios.first_tokens < MUCH_LARGER
    )


def _weights_differ(features: Features) -> Suspicion | None:
    log_ratios = features.log_ratios
    if features.validity.answer == INVALID:
        # Other weights still give normalised probabilities: they did not sample.
        return None if features.declared.sampler.speculative else _trainer_sampled(features)
    if not looks_like_other_weights(log_ratios) or features.declared.weights_agree:
        return None
    return Suspicion(
        confidence=CLEAR,
        message=f"Log-ratios ({log_ratios.rms:.2g} nats rms) depend on the token id in the same "
        "way in both halves of the rows: the sampler's weights are not the trainer's."
        f"{one_behind(features)}",
        evidence=[
            by_token_fact(log_ratios, "systematic, not noise"),
            features.validity.evidence,
        ],
        also_possible=[
            "stale-weights",
            "partial-sync",
            "tied-head-desync",
            "lora-missing",
            "quantised-weights",
            "forwards-differ",
        ],
    )


def _draft_recorded(features: Features) -> Suspicion | None:
    """Look for log-probs of another model where the sampler states speculative decoding."""
    found = _trainer_sampled(features) if features.declared.sampler.speculative else None
    if found is None:
        return None
    message = f"{found.message} The sampler used speculative decoding: those of the draft model."
    return replace(found, confidence=CLEAR, message=message, also_possible=["reference-as-old"])


def _trainer_sampled(features: Features) -> Suspicion | None:
    """Look for tokens of the trainer's distribution with log-probs of another model.

    The mean log-ratio is minus a divergence where the recorded distribution sampled, and plus one
    where the trainer's did. Exchanged columns, another model that scored the tokens, and a draft
    model that proposed them predict the same.
    """
    log_ratios = features.log_ratios
    mean, z = log_ratios.mean
    if log_ratios.rms < COARSE or z < BY_ITS_ERROR or features.validity.answer != INVALID:
        return None
    if features.few_places is not None:
        return None  # a few tokens or rows do not show which distribution sampled the others
    # Under the trainer's distribution E[1 / ratio] is 1. Noise of the other engine moves it
    # too, but its z stays far below that of E[ratio].
    if abs(log_ratios.inverse_mean[1]) > max(SURELY, HALF * log_ratios.ratio_mean[1]):
        return None
    sampler, trainer = features.case.sampler, features.case.trainer
    return Suspicion(
        confidence=LIKELY,
        message=f"The distribution of `{trainer}` sampled the tokens, not the recorded one: they "
        f"are likelier under it, by {mean:.2g} nats per token ({z:+.0f} standard errors). "
        f"`{sampler}` has the log-probs of another model: the two columns are exchanged, or a "
        "reference, a draft or older weights scored the tokens.",
        evidence=[
            fact("mean log-ratio", "positive: the recorded policy did not sample", mean=mean, z=z),
            fact(
                "E[1 / ratio]",
                "1 if the trainer's distribution sampled",
                value=log_ratios.inverse_mean[0],
                z=log_ratios.inverse_mean[1],
            ),
        ],
        side="recorder",
        also_possible=["draft-recorded", "reference-as-old", "temperature-raw-recorded"],
        verdict="broken",
    )


def old_after_update(features: Features) -> Suspicion | None:
    """Look for rows whose log-probs rose with their advantage: `old` was computed after updates.

    An update on these rows raises the log-probs of those with a positive advantage and lowers
    those of the others. Rows of a stale sampler do not follow their own advantages. Responses to
    one prompt are compared with each other: prompts differ in both columns for other reasons.
    """
    advantage, tokens = features.case.facts.advantage, features.case.tokens
    if advantage is None or features.validity.answer == INVALID:
        return None
    known = np.isfinite(advantage) & (tokens.per_row > 0)
    mean = tokens.row_sums(features.log_ratios.values)[known] / tokens.per_row[known]
    group, declared = np.zeros(len(mean), np.int64), features.case.facts.group
    if declared is not None:
        ids, of_row = np.unique(declared[known], return_inverse=True)
        group = of_row if len(ids) < len(mean) else group  # else no two rows share a prompt
    r, t = _follows(_centred(mean, group), _centred(advantage[known], group))
    if r < HALF or t < SURELY:
        return None
    return Suspicion(
        confidence=CLEAR,
        message=f"The log-ratio of a row rises with its advantage (correlation {r:.2f}, t "
        f"{t:.0f}): `{features.case.trainer}` was computed after updates on these very rows.",
        evidence=[
            fact("correlation of the mean log-ratio with the advantage", "updated", r=r, t=t),
            fact("rms log-ratio", "moved by the update", rms=features.log_ratios.rms),
        ],
        also_possible=["stale-weights"],
    )


def _centred(values: Array, group: Counts) -> Array:
    """Return each row's value minus the mean of its group, [rows]."""
    mean: Array = np.bincount(group, values) / np.maximum(np.bincount(group), 1)
    return values - mean[group]


def _follows(mean: Array, advantage: Array) -> tuple[float, float]:
    """Return the correlation of two columns of mean zero, and its t statistic.

    t = sum(mean * advantage) / sqrt(sum((mean * advantage)^2)) counts every row once, however large
    its product. If rewards vary in one group of 8 rows only, t is that of 8 rows and not of the
    whole table.
    """
    product = mean * advantage
    if np.count_nonzero(product) < FEWEST:
        return 0.0, 0.0
    size = np.sqrt((mean @ mean) * (advantage @ advantage))
    return float(product.sum() / size), float(product.sum() / np.sqrt(product @ product))


WEIGHTS = (
    shipped("old-after-update", "difference", old_after_update),
    shipped("stale-weights", "difference", _stale_weights),
    shipped("replica-unsynced", "difference", _replica),
    shipped("in-flight-update", "difference", _in_flight),
    shipped("weights-never-synced", "difference", _never_synced),
    shipped("draft-recorded", "difference", _draft_recorded),
    shipped("weights-differ", "difference", _weights_differ),
)
