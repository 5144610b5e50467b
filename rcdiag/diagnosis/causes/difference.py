"""Causes of a genuine difference between two forward passes: weights, precision, noise.

One of them is always named: what none of the others explains is the noise of two engines, or two
forward passes that differ without a telling structure.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from rcdiag.diagnosis.case import Counts, Flags
from rcdiag.diagnosis.causes.cause import Suspicion, fact, shipped
from rcdiag.diagnosis.signs import HONEST, LOUD, Law, Signs

COARSE = 0.1  # nats, rms: quantised weights differ by less
GIVEN_BACK = 0.2  # of the re-scores' own difference, by which they may miss the columns
FEWEST_MIXED = 4  # rows sampled by several versions, from which on weights changed in flight
MOST_ONE_SIDED = 0.98  # share of squared log-ratios of one sign
MANY_ROWS = 32  # rows from which on two kinds of them are told apart
# Both sides compute in one precision with one kernel.
BITWISE = 1e-4
# A mean is not what it should be beyond so many clustered standard errors.
BROKEN = 4.0
# A tail without a place: the largest thousandth of the tokens holds so much of the squares, and
# the largest hundredth stands in so many different rows, as far as there are rows.
MOST_IN_TAIL, SPREAD_OVER_ROWS = 0.5, 0.6
BULK = 0.04  # nats, rms of all but the largest hundredth, with a few experts exchanged


def _noisy(signs: Signs) -> bool:
    """Tell whether the mismatch is no more than two honest engines have."""
    law = signs.law
    if abs(law.ratio_mean[0] - 1.0) > 0.001 and abs(law.ratio_mean[1]) > 2 * BROKEN:
        return False  # rounding leaves E[ratio] at 1
    if law.rms < HONEST:
        return True
    correlation, explained = law.by_token_id
    directed = correlation >= 0.3 and explained >= 0.02
    return law.rms < LOUD and not directed and abs(law.ratio_mean[1]) < 4.0


def _healthy(signs: Signs) -> Suspicion | None:
    law = signs.law
    if not len(signs.case.tokens) or law.rms >= BITWISE:
        return None
    return Suspicion(
        confidence=0.95,
        message=f"Both columns agree to {law.rms:.1g} nats rms: one precision, one law.",
        evidence=[fact("rms log-ratio", "one precision on both sides", rms=law.rms)],
        also_possible=["temperature-silent", "top-p-silent"],
        verdict="fine",
    )


def _engine_noise(signs: Signs) -> Suspicion | None:
    law = signs.law
    tokens = len(signs.case.tokens)
    if not tokens or law.rms < BITWISE or not _noisy(signs):
        return None
    quiet = law.rms < HONEST
    others = ["bf16-logits", "batch-noise", "temperature-silent", "top-p-silent"]
    return Suspicion(
        confidence=0.9 if quiet else 0.7,
        message=f"Log-ratios are small ({law.rms:.2g} nats rms) and without structure: the "
        "rounding of two engines.",
        evidence=[
            fact("rms log-ratio", "rounding", rms=law.rms),
            fact(
                "E[ratio]", "the recorded law sampled", value=law.ratio_mean[0], z=law.ratio_mean[1]
            ),
            fact(
                "token ids agree between halves of the rows",
                "no drift of weights",
                correlation=law.by_token_id[0],
            ),
        ],
        also_possible=others if quiet else ["moe-routing", "quantised-weights", *others[:2]],
    )


def _moe_routing(signs: Signs) -> Suspicion | None:
    """Look for rounding nearly everywhere and a few tokens that are far off, anywhere.

    What moves tokens by their id, their place, their row or to one law alone has another cause.
    """
    law = signs.law
    if not len(signs.case.tokens) or _noisy(signs) or law.tail_share < MOST_IN_TAIL:
        return None
    bulk = law.rms_of_bulk
    if bulk > BULK or abs(law.ratio_mean[1]) > BROKEN or abs(law.by_token_id[0]) > 0.3:
        return None
    anywhere = law.first_tokens < 3.0 and 1 / 3.0 < law.late < 3.0
    if not anywhere or law.rows_of_tail < SPREAD_OVER_ROWS:
        return None
    return Suspicion(
        confidence=0.65,
        message=f"The bulk of the tokens agrees ({bulk:.2g} nats rms but for the largest 1%), and "
        f"0.1% of them, anywhere, hold {law.tail_share:.0%} of the squared log-ratios: as where "
        "the engines chose other experts for a few tokens.",
        evidence=[
            fact("rms log-ratio but for the largest 1%", "rounding", rms=bulk),
            fact(
                "share of squares in the largest 0.1% of tokens",
                "a tail of few tokens",
                share=law.tail_share,
            ),
            fact(
                "E[ratio]", "the recorded law sampled", value=law.ratio_mean[0], z=law.ratio_mean[1]
            ),
        ],
        also_possible=["engine-noise", "batch-noise", "moe-expert-wrong"],
    )


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


def _older_trainer(signs: Signs) -> Suspicion | None:
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


def _reference(signs: Signs) -> Suspicion | None:
    return _older_trainer(signs) or _by_rescore("reference-as-old")(signs)


def _stale_weights(signs: Signs) -> Suspicion | None:
    if _older_trainer(signs) is not None:
        return None
    return _declared_weights(signs) or _older_version(signs)


def _older_version(signs: Signs) -> Suspicion | None:
    """Look for rows whose weights, by their number, are several updates behind their step.

    Some loops count the weights from 0 and the steps from 1: one update behind is in order.
    """
    version, step, law = signs.case.facts.policy_version, signs.case.facts.step, signs.law
    if version is None or step is None or not len(signs.case.tokens) or _noisy(signs):
        return None
    if signs.declared.weights_agree or law.first_tokens > 3.0 or _not_sampled_from(law):
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
        confidence=0.92 if _by_weights(law) else 0.7,
        message=f"The columns `policy_version` and `step` say that the sampler's weights are {by} "
        f"updates behind; the two sides differ by {law.rms:.2g} nats rms.",
        evidence=[
            fact("step less policy_version", "weights of earlier steps", least=least, most=most),
            fact(
                "token ids agree between halves of the rows",
                "a drift with a direction" if _by_weights(law) else "not told by token ids",
                correlation=law.by_token_id[0],
                explained=law.by_token_id[1],
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
    grows = len(later) < 2 or later[-1] > 1.1 * later[0]
    if not grows or signs.law.by_token_id[0] < 0.6 or abs(signs.law.ratio_mean[1]) > 4.0:
        return None
    before = float(np.median(onset.steps.rms[: onset.first]))
    last = onset.steps.labels[-1]
    steadily = len(later) >= 4 and np.mean(np.diff(later) > 0) >= 0.8
    return Suspicion(
        confidence=0.85 if steadily else 0.7 if len(onset.steps.labels) > 2 else 0.55,
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
    grows = float(np.mean(np.diff(parts.rms) > 0))
    if grows < 0.8 or parts.rms[-1] < 3 * parts.rms[0] or parts.rms[-1] < 2 * HONEST:
        return None
    if law.by_token_id[0] < 0.6 or abs(law.ratio_mean[1]) > BROKEN:
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


def _replica(signs: Signs) -> Suspicion | None:
    parts, loud = signs.places.by_engine, signs.places.loud_rows
    if parts is None or loud is None or not loud.engines or signs.law.rms < HONEST:
        return None
    if _not_sampled_from(Signs(signs.case.take(loud.rows)).law):
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


def _not_sampled_from(law: Law) -> bool:
    """Tell whether the recorded law is not the one that sampled, so that other weights, precision
    or context of the trainer are not all that differs.

    Large ratios that a sample misses make E[ratio] too small, never too large; and rounding by the
    recorder itself makes it larger by less than rms^2.
    """
    (mean, z), rms = law.ratio_mean, law.rms
    return (z > BROKEN and mean - 1.0 > rms**2) or (z < -BROKEN and 1.0 - mean > rms**2 > 0)


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
        message=f"In {rows:.0%} of the rows weights changed while they were sampled: tokens of "
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


def _by_weights(law: Law, share: float = 0.08) -> bool:
    """Tell whether log-ratios depend on the token id, as a drift of weights has it."""
    correlation, explained = law.by_token_id
    return (
        correlation > 0.8
        and explained > share
        and law.rms < 0.5
        and law.first_tokens < 3.0
        and law.late < 3.5
    )


def _tied_head(signs: Signs) -> Suspicion | None:
    law = signs.law
    correlation, explained = law.by_token_id
    if law.rms < HONEST or explained < 0.8 or law.rms > 1.0 or law.first_tokens > 4:
        return None
    return Suspicion(
        confidence=0.75,
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
    if law.rms < HONEST or not _by_weights(law) or signs.declared.weights_agree:
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
    return Suspicion(
        confidence=0.9,
        message=f"Log-ratios ({law.rms:.2g} nats rms) depend on the token, the same in both halves "
        "of the rows: the sampler's weights are not the trainer's.",
        evidence=[
            fact(
                "token ids agree between halves of the rows",
                "a drift with a direction",
                correlation=law.by_token_id[0],
                explained=law.by_token_id[1],
            ),
            fact(
                "E[ratio]", "the recorded law sampled", value=law.ratio_mean[0], z=law.ratio_mean[1]
            ),
        ],
        also_possible=[
            "stale-weights",
            "partial-sync",
            "lora-missing",
            "quantised-weights",
            "forwards-differ",
        ],
    )


def _draft_recorded(signs: Signs) -> Suspicion | None:
    """Look for tokens that are likelier under the trainer than under what was recorded for them.

    Under the law that sampled, the mean log-ratio is minus a divergence: it cannot be positive.
    """
    law = signs.law
    mean = float(law.log_ratio.mean())
    z = signs.case.tokens.z(law.log_ratio)
    if law.rms < HONEST or z < BROKEN or 2 * mean < 0.2 * law.rms**2:
        return None
    # Noise of the engine that scored the draft moves E[1 / ratio] a little.
    if abs(law.inverse_mean[1]) > max(BROKEN, 0.4 * law.ratio_mean[1]):
        return None
    return Suspicion(
        confidence=0.7,
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


def _forwards_differ(signs: Signs) -> Suspicion | None:
    law = signs.law
    if len(signs.case.tokens) == 0 or _noisy(signs):
        return None
    broken = abs(law.ratio_mean[1]) > BROKEN
    quiet = _share_of_quiet_rows(signs)
    if quiet is not None:
        where = (
            f" in some rows, while {quiet:.0%} of the rows agree to rounding: another replica, "
            "packing, padding, a cache, or text that was encoded again; nothing in the table tells "
            "which"
        )
        possible = ["replica-unsynced", "packing-leak", "retokenised", "context-differs"]
    elif _not_sampled_from(law):
        mean = law.ratio_mean[0]
        where, possible = _no_law_of_both(mean)
    else:
        where = (
            " in weights, precision, context or model function; nothing in the table tells which"
        )
        possible = ["weights-differ", "context-differs", "quantised-weights"]
    return Suspicion(
        confidence=0.85 if law.rms > LOUD else 0.7,
        message=f"The two forward passes differ ({law.rms:.2g} nats rms, k3 {law.k3:.2g}){where}.",
        evidence=[
            fact(
                "rms log-ratio",
                "more than rounding" if law.rms >= HONEST else "that of rounding, but see E[ratio]",
                rms=law.rms,
            ),
            fact(
                "E[ratio]",
                "not 1: the record may not be the law that sampled"
                if broken
                else "the recorded law sampled",
                value=law.ratio_mean[0],
                z=law.ratio_mean[1],
            ),
        ],
        side="engine",
        also_possible=possible,
        verdict=_verdict_of_size(law, broken),
    )


def _no_law_of_both(mean: float) -> tuple[str, list[str]]:
    """Say what an E[ratio] that is not 1 leaves possible, and name it.

    Whatever weights, precision, context and function the trainer has: its law sums to 1, so that
    E[ratio] is 1 under the law that sampled.
    """
    if mean > 1:
        return (
            f", and E[ratio] is {mean:.3g}, not 1 as for other weights, precision or context: what "
            "was recorded is not the law that sampled, or the trainer's does not sum to 1",
            ["temperature-raw-recorded", "draft-recorded", "vocab-shard-wrong"],
        )
    return (
        f", and E[ratio] is {mean:.3g}, not 1 as for other weights, precision or context: the "
        "sampler could not take what the trainer expects, or the trainer's law does not sum to 1",
        ["truncated-law", "penalty", "vocabulary-padding"],
    )


def _share_of_quiet_rows(signs: Signs) -> float | None:
    """Return the share of rows at rounding where rows are of two kinds; None where of one."""
    rms = signs.places.rms_of_rows
    rms = rms[np.isfinite(rms)]
    if len(rms) < MANY_ROWS:
        return None
    quiet, loud = float(np.mean(rms < HONEST)), float(np.mean(rms > 3 * LOUD))
    return quiet if min(quiet, loud) > 0.1 and quiet + loud > 0.85 else None


def _verdict_of_size(law: Law, broken: bool) -> str:
    """Return the verdict on a difference without a name."""
    if (broken and law.ratio_mean[0] < 0.99) or law.k3 > 0.1:
        return "fix"
    return "cannot-tell" if broken or law.rms > LOUD else "correct"


def _by_rescore(slug: str) -> Callable[[Signs], Suspicion | None]:
    """Make the question whether honest re-scores tell which side is at fault, and by what."""

    def weigh(signs: Signs) -> Suspicion | None:
        engine, model = signs.rescored
        if engine is None or model is None or signs.law.rms < 0.02:
            return None
        case = signs.case
        noise = max(signs.between(engine, model).rms, 1e-4)
        trainer = signs.between(model, str(case.trainer))
        sampler = signs.between(case.sampler, engine)
        facts = [
            fact(
                "rms log-ratio",
                "against the re-scores",
                **{
                    f"{case.sampler} and {engine}": sampler.rms,
                    f"{case.trainer} and {model}": trainer.rms,
                    f"{engine} and {model}": noise,
                },
            )
        ]
        if trainer.rms > 3 * noise and sampler.rms < 0.5 * trainer.rms:
            named = _trainer_fault(trainer)
            text = f"`{case.trainer}` is not what the trainer's model gives (`{model}`)"
        elif sampler.rms > 1.5 * noise and trainer.rms < 0.5 * sampler.rms:
            named = _sampler_fault(sampler)
            text = (
                f"`{case.sampler}` is not what the engine gives with the trainer's weights "
                f"(`{engine}`)"
            )
        elif max(trainer.rms, sampler.rms) < GIVEN_BACK * noise and LOUD < noise < COARSE:
            named = "quantised-weights"
            text = (
                f"`{engine}` gives `{case.sampler}` back and `{model}` `{case.trainer}`: with the "
                "same weights the engine itself is not the trainer's model"
            )
        else:
            return None
        if named != slug:
            return None
        return Suspicion(
            confidence=0.85,
            message=f"{text}: they differ by {max(trainer.rms, sampler.rms):.2g} nats rms, the two "
            f"re-scores by {noise:.2g}.",
            evidence=facts,
            side="trainer" if trainer.rms > sampler.rms else "sampler",
            verdict=None
            if slug != "forwards-differ"
            else ("fix" if trainer.rms > sampler.rms else None),
        )

    return weigh


def _trainer_fault(law: Law) -> str:
    if law.first_tokens > 5.5:
        return "context-differs"
    return "reference-as-old" if _by_weights(law) else "forwards-differ"


def _sampler_fault(law: Law) -> str:
    if law.first_tokens > 5.5:
        return "context-differs"
    if _by_weights(law):
        return "weights-differ"
    return "quantised-weights" if law.rms < COARSE else "forwards-differ"


def _declared_quantisation(signs: Signs) -> tuple[str, str] | None:
    text = signs.declared.sampler.quantisation
    if text is None:
        return None
    for word, slug in (
        ("fp8", "fp8-weights"),
        ("float8", "fp8-weights"),
        ("w8a8", "int8-weights"),
        ("int8", "int8-weights"),
        ("int4", "int4-weights"),
        ("awq", "int4-weights"),
        ("gptq", "int4-weights"),
        ("nf4", "int4-weights"),
    ):
        if word in text:
            return slug, text
    return "quantised-weights", text


def _quantised(slug: str) -> Callable[[Signs], Suspicion | None]:
    def weigh(signs: Signs) -> Suspicion | None:
        declared = _declared_quantisation(signs)
        if declared is None or declared[0] != slug or signs.declared.weights_differ:
            return None
        return Suspicion(
            confidence=0.92,
            message=f"Metadata says that the sampler's weights are quantised ({declared[1]}); "
            f"log-ratios are {signs.law.rms:.2g} nats rms.",
            evidence=[fact("quantisation of the sampler", "declared", declared=declared[1])],
            also_possible=["stale-weights"],
        )

    return weigh


DIFFERENCE = (
    shipped("stale-weights", "difference", _stale_weights),
    *(
        shipped(slug, "difference", _quantised(slug))
        for slug in ("fp8-weights", "int8-weights", "int4-weights")
    ),
    shipped("replica-unsynced", "difference", _replica),
    shipped("in-flight-update", "difference", _in_flight),
    shipped("weights-never-synced", "difference", _never_synced),
    shipped("draft-recorded", "difference", _draft_recorded),
    shipped("reference-as-old", "difference", _reference),
    shipped("tied-head-desync", "difference", _tied_head),
    shipped("weights-differ", "difference", _weights_differ),
    shipped("quantised-weights", "difference", _by_rescore("quantised-weights")),
    shipped("healthy", "difference", _healthy),
    shipped("engine-noise", "difference", _engine_noise),
    shipped("moe-routing", "difference", _moe_routing),
    shipped("forwards-differ", "difference", _forwards_differ),
)
