"""Causes by which the two sides have other weights: old ones, a part of them, another policy's."""

from __future__ import annotations

import re

import numpy as np

from rcdiag.diagnosis.case import Counts, Flags
from rcdiag.diagnosis.causes.cause import Suspicion, fact, shipped
from rcdiag.diagnosis.causes.evidence import above_one, ratio_fact
from rcdiag.diagnosis.causes.noise import BROKEN, noisy, not_sampled_from
from rcdiag.diagnosis.estimates import mean_ratio, share_of
from rcdiag.diagnosis.signs import HONEST, Law, Signs
from rcdiag.diagnosis.signs.places import trend

MANY_SYNCED = 4  # steps at rounding, after which one other step is no sampler that is never synced
FEWEST_MIXED = 4  # rows sampled by several versions, from which on weights changed in flight
MOST_ONE_SIDED = 0.98  # share of squared log-ratios of one sign


def _declared_weights(signs: Signs) -> Suspicion | None:
    declared = signs.declared
    if not declared.weights_differ or signs.law.rms < HONEST:
        return None
    sampler, trainer = declared.sampler, declared.trainer
    return Suspicion(
        confidence=0.97,
        message="The sampler's weights are not the trainer's: "
        f"`{signs.case.sampler}` was scored with {_model(sampler.model)}, "
        f"`{signs.case.trainer}` with {_model(trainer.model)}.",
        evidence=[
            fact(
                "weights fingerprint",
                "different",
                **{
                    signs.case.sampler: _short(sampler.weights),
                    str(signs.case.trainer): _short(trainer.weights),
                },
            )
        ],
        also_possible=["partial-sync", "reference-as-old"],
    )


def older_trainer(signs: Signs) -> Suspicion | None:
    """Look for a trainer's column whose weights are of an earlier step than the sampler's."""
    declared = signs.declared
    steps = [_step_of(side.model) for side in (declared.sampler, declared.trainer)]
    if not declared.weights_differ or signs.law.rms < HONEST or None in steps:
        return None
    sampler, trainer = steps
    if sampler is None or trainer is None or trainer >= sampler:
        return None
    return Suspicion(
        confidence=0.9,
        message=f"`{signs.case.trainer}` was scored with {_model(declared.trainer.model)}, older "
        f"weights than the sampler's ({_model(declared.sampler.model)}): it is another policy's "
        "column, as a reference's.",
        evidence=[
            fact(
                "step in the name of the weights",
                "the trainer's are older than the sampler's",
                **{signs.case.sampler: sampler, str(signs.case.trainer): trainer},
            )
        ],
        also_possible=["stale-weights"],
    )


def _step_of(model: str | None) -> int | None:
    """Return the step that the name of weights ends with, as `ckpt/step_40`; None without one."""
    found = re.search(r"(?:step|iter|checkpoint|ckpt)[_-]?(\d+)/?$", model or "")
    return None if found is None else int(found[1])


def _stale_weights(signs: Signs) -> Suspicion | None:
    if older_trainer(signs) is not None:
        return None
    return _declared_weights(signs) or _older_version(signs)


def _older_version(signs: Signs) -> Suspicion | None:
    """Look for rows whose weights, by their number, are several updates behind their step.

    Some loops count the weights from 0 and the steps from 1: one update behind is in order.
    """
    version, step, law = signs.case.facts.policy_version, signs.case.facts.step, signs.law
    if version is None or step is None or not len(signs.case.tokens) or noisy(signs):
        return None
    if signs.declared.weights_agree or law.first_tokens > 3.0 or not_sampled_from(law):
        return None
    tokens = signs.case.tokens
    own = version[tokens.place] if signs.case.facts.version_by_token else version[tokens.owner]
    lag = step[tokens.owner] - own
    behind = float(np.mean(lag >= 2))
    if behind < 0.9:
        return None
    least, most = int(lag.min()), int(lag.max())
    by = f"{least}" if least == most else f"{least} to {most}"
    return Suspicion(
        confidence=0.92 if by_weights(law) else 0.7,
        message=f"The columns `policy_version` and `step` say that the sampler's weights are {by} "
        f"updates behind; the two sides differ by {law.rms:.2g} nats rms.",
        evidence=[
            fact("step less policy_version", "weights of earlier steps", least=least, most=most),
            fact(
                "token ids agree between halves of the rows",
                "a drift with a direction" if by_weights(law) else "not told by token ids",
                correlation=law.by_token_id.correlation,
                explained=law.by_token_id.explained,
            ),
        ],
        share_of_rows=behind,
        also_possible=["weights-differ", "weights-never-synced", "forwards-differ"],
    )


def _model(name: str | None) -> str:
    return name or "weights that have no name"


def _short(fingerprint: object) -> str:
    return fingerprint[:8] if isinstance(fingerprint, str) else "several"


def _never_synced(signs: Signs) -> Suspicion | None:
    onset = signs.onset
    if signs.law.rms < HONEST:
        return None
    if onset is None:
        return _growing(signs)
    later = onset.steps.rms[onset.first :]
    # One step after many that were synced shows no growth.
    grows = later[-1] > 1.1 * later[0] if len(later) > 1 else onset.first < MANY_SYNCED
    if not grows or signs.law.by_token_id.correlation < 0.6 or _no_weights(signs.law):
        return None
    before = float(np.median(onset.steps.rms[: onset.first]))
    last = onset.steps.labels[-1]
    steadily = len(later) >= 4 and np.mean(np.diff(later) > 0) >= 0.8
    return Suspicion(
        confidence=0.85 if steadily else 0.74 if len(onset.steps.labels) > 2 else 0.55,
        message=f"The gap is {before:.2g} nats rms up to step "
        f"{onset.steps.labels[onset.first - 1]} and {onset.steps.rms[-1]:.2g} in step {last}: the "
        "sampler keeps the weights of an earlier step.",
        evidence=[
            fact(
                "rms log-ratio by step",
                "grows",
                steps=onset.steps.labels[-12:],
                rms=[round(float(value), 5) for value in onset.steps.rms[-12:]],
            )
        ],
        also_possible=["stale-weights", "weights-differ"],
    )


def _growing(signs: Signs) -> Suspicion | None:
    """Look for a gap that grows from step to step, as behind weights that stay as they were."""
    parts, law = signs.places.by_step, signs.law
    if parts is None or len(parts.labels) < 4:
        return None
    steadily = float(np.mean(np.diff(parts.rms) > 0)) >= 0.8 and parts.rms[-1] > 3 * parts.rms[0]
    if not (steadily or trend(parts.rms) > 2.0) or parts.rms[-1] < 2 * HONEST:
        return None
    if law.by_token_id.correlation < 0.6 or _no_weights(law):
        return None
    return Suspicion(
        confidence=0.8,
        message=f"The gap grows from step to step, from {parts.rms[0]:.2g} nats rms in step "
        f"{parts.labels[0]} to {parts.rms[-1]:.2g} in step {parts.labels[-1]}: the sampler keeps "
        "the weights of an earlier step.",
        evidence=[
            fact(
                "rms log-ratio by step",
                "grows",
                steps=parts.labels[-12:],
                rms=[round(float(value), 5) for value in parts.rms[-12:]],
            )
        ],
        also_possible=["stale-weights", "weights-differ"],
    )


def _no_weights(law: Law) -> bool:
    """Tell whether log-ratios are not those of other weights, whose law sums to 1 and moves tokens
    both ways.
    """
    broken = abs(law.ratio_mean[1]) > law.tokens.as_far(BROKEN)
    return broken or law.one_sided > MOST_ONE_SIDED


def _replica(signs: Signs) -> Suspicion | None:
    parts, loud = signs.places.by_engine, signs.places.loud_rows
    if parts is None or loud is None or not loud.engines or signs.law.rms < HONEST:
        return None
    if not_sampled_from(Signs(signs.case.take(loud.rows)).law):
        return None
    return Suspicion(
        confidence=0.95,
        message=f"Rows of {', '.join(loud.engines)} differ by {loud.loud:.2g} nats rms, "
        f"those of the other engines by {loud.quiet:.2g}: that replica has other weights.",
        evidence=[
            fact(
                "rms log-ratio by engine",
                "one stands apart",
                **dict(zip(parts.labels, np.round(parts.rms, 5).tolist(), strict=True)),
            )
        ],
        share_of_rows=float(loud.rows.mean()),
        also_possible=["stale-weights", "weights-differ"],
    )


def _in_flight(signs: Signs) -> Suspicion | None:
    """Look for rows whose tokens were sampled by several versions of the weights."""
    facts, law = signs.case.facts, signs.law
    if not facts.version_by_token or facts.policy_version is None or law.rms < HONEST:
        return None
    tokens = signs.case.tokens
    version = facts.policy_version[tokens.place]
    if len(np.unique(tokens.owner[_changes_within(tokens.owner, version)])) < FEWEST_MIXED:
        return None
    # Rows that ended before the weights changed are of older versions as well.
    step = np.zeros(tokens.rows, np.int64) if facts.step is None else facts.step
    _, part = np.unique(step[tokens.owner], return_inverse=True)
    newest = np.full(int(part.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(newest, part, version)
    old = version < newest[part]
    if old.sum() < 50 or (~old).sum() < 50:
        return None
    before = float(np.sqrt(np.mean(law.log_ratio[old] ** 2)))
    after = float(np.sqrt(np.mean(law.log_ratio[~old] ** 2)))
    rows = len(np.unique(tokens.owner[old])) / max(int((tokens.per_row > 0).sum()), 1)
    if before < 1.5 * after and after < 1.5 * before:
        return None
    return Suspicion(
        confidence=0.9,
        message=f"In {share_of(rows)} weights changed while they were sampled: tokens of "
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


def _changes_within(owner: Counts, version: Counts) -> Flags:
    """Flag the tokens before which the version changes within their row, [tokens]."""
    same_row = np.diff(owner, prepend=-1) == 0
    return same_row & (np.diff(version, prepend=version[:1]) != 0)


def by_weights(law: Law, share: float = 0.08) -> bool:
    """Tell whether log-ratios depend on the token id, as a drift of weights has it."""
    seen = law.by_token_id
    return (
        seen.correlation > 0.8
        and seen.beyond_chance
        and seen.explained > share
        and law.rms < 0.5
        and law.first_tokens < 3.0
        and law.late < 3.5
    )


def _tied_head(signs: Signs) -> Suspicion | None:
    law = signs.law
    correlation, explained, _ = law.by_token_id
    if law.rms < HONEST or explained < 0.8 or law.rms > 1.0 or law.first_tokens > 4:
        return None
    return Suspicion(
        confidence=0.85,
        message=f"The token id alone explains {explained:.0%} of the log-ratios' variance: the "
        "output heads differ, and nothing before them.",
        evidence=[
            fact(
                "variance explained by the token id",
                "the head differs",
                explained=explained,
                correlation=correlation,
            )
        ],
        also_possible=["weights-differ", "special-token-ids"],
    )


def _weights_differ(signs: Signs) -> Suspicion | None:
    law = signs.law
    if law.rms < HONEST or not by_weights(law) or signs.declared.weights_agree:
        return None
    mean, z = law.ratio_mean
    if abs(mean - 1.0) > 0.05 and abs(z) > 2 * BROKEN:
        return None  # other weights sum to 1 too: the recorded law is not the one that sampled
    # Missed large ratios make a mean too small, noise of the recorder half of rms^2 too large.
    if mean - 1.0 > law.rms**2 and z > BROKEN + 1:
        return None
    if _draft_recorded(signs) is not None:
        return None
    if law.one_sided > MOST_ONE_SIDED:
        return None  # other weights move tokens both ways
    if signs.sure_power is not None and signs.sure_power.one_sided:
        return None  # one law is sharper in every context, as no other weights make it
    more = above_one(law)
    besides = (
        f" Beside that E[ratio] is {mean_ratio(law.ratio_mean[0])}, not 1: the record may not be "
        "the law that sampled, as where its temperature is another one."
    )
    return Suspicion(
        confidence=0.9,
        message=f"Log-ratios ({law.rms:.2g} nats rms) depend on the token, the same in both halves "
        f"of the rows: the sampler's weights are not the trainer's.{besides if more else ''}",
        evidence=[
            fact(
                "token ids agree between halves of the rows",
                "a drift with a direction",
                correlation=law.by_token_id.correlation,
                explained=law.by_token_id.explained,
            ),
            ratio_fact(law),
        ],
        also_possible=[
            *(["temperature-raw-recorded", "draft-recorded"] if more else []),
            "stale-weights",
            "partial-sync",
            "lora-missing",
            "quantised-weights",
            "forwards-differ",
        ],
        verdict="inconclusive" if more else None,
    )


def _draft_recorded(signs: Signs) -> Suspicion | None:
    """Look for tokens that are likelier under the trainer than under what was recorded for them.

    Under the law that sampled, the mean log-ratio is minus a divergence: it cannot be positive.
    """
    law = signs.law
    mean, z = law.mean
    if law.rms < HONEST or z < BROKEN or 2 * mean < 0.2 * law.rms**2:
        return None
    # Noise of the engine that scored the draft moves E[1 / ratio] a little.
    if abs(law.inverse_mean[1]) > max(BROKEN, 0.4 * law.ratio_mean[1]):
        return None
    return Suspicion(
        confidence=0.74,
        message=f"Sampled tokens are likelier under `{signs.case.trainer}` than under the recorded "
        f"policy, by {mean:.2g} nats a token ({z:+.0f} standard errors): what was recorded is not "
        "the law that sampled, as when a draft model's log-probs are written for its target's "
        "tokens.",
        evidence=[
            fact("mean log-ratio", "positive: the recorded law did not sample", mean=mean, z=z),
            fact(
                "E[1 / ratio]",
                "1: the tokens are of the trainer's law",
                value=law.inverse_mean[0],
                z=law.inverse_mean[1],
            ),
        ],
        side="recorder",
        also_possible=["reference-as-old", "temperature-raw-recorded"],
    )


OTHER_WEIGHTS = (
    shipped("stale-weights", "difference", _stale_weights),
    shipped("replica-unsynced", "difference", _replica),
    shipped("in-flight-update", "difference", _in_flight),
    shipped("weights-never-synced", "difference", _never_synced),
    shipped("draft-recorded", "difference", _draft_recorded),
    shipped("tied-head-desync", "difference", _tied_head),
    shipped("weights-differ", "difference", _weights_differ),
)
