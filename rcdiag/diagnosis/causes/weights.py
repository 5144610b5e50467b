"""The two sides have different weights: older ones, a part of them, another policy's."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.case import Array, Counts
from rcdiag.diagnosis.causes.cause import (
    CLEAR,
    EXACT,
    LIKELY,
    Suspicion,
    by_token_fact,
    fact,
    shipped,
)
from rcdiag.diagnosis.causes.lag import LAGS, lagging, looks_like_other_weights, one_behind
from rcdiag.diagnosis.features import ENGINE_NOISE, Features
from rcdiag.diagnosis.thresholds import (
    BY_ITS_ERROR,
    COARSE,
    FEWEST,
    HALF,
    SURELY,
)
from rcdiag.diagnosis.validity import INVALID

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
    return lagging(features)


def _model(name: str | None) -> str:
    return name or "weights that have no name"


def _short(fingerprint: object) -> str:
    return fingerprint[:8] if isinstance(fingerprint, str) else "several"


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
    *LAGS,
    shipped("draft-recorded", "difference", _draft_recorded),
    shipped("weights-differ", "difference", _weights_differ),
)
