"""One preset on one batch: its weights and mask, its loss, what the trainer would log.

The replay of one preset: loss, pull on every token, who gets it, and its health.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.corrections.apply import TokenEffects, quantities_of, token_effects
from rcdiag.corrections.correction import Correction
from rcdiag.corrections.quantities import Tokens
from rcdiag.corrections.sequences import rows_of
from rcdiag.corrections.trainer_means import Batch
from rcdiag.diagnosis.update_health import Evidence, health
from rcdiag.losses.batch import loss_batch
from rcdiag.losses.settings import LossSettings
from rcdiag.results import Denominator, Factor, Histogram, PresetReplay
from rcdiag.statistics.hashing import mixed
from rcdiag.table.segments import segment_sum
from rcdiag.trainers.evaluate import LossResult, evaluate
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.batch import ReplayBatch, without_rejected
from rcdiag.usecases.replay.shares import coefficient_numbers, shares

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Applied:
    """A correction as it stands in the loss of one batch."""

    mode: str  # decoupled, bypass or naive
    loss: str  # name of the policy loss
    anchor: Array  # [tokens] what the PPO ratio is taken against
    kept: NDArray[np.bool_]  # [tokens]
    weights: Array | None  # [tokens] in the loss; batch normalisation done
    metrics: Mapping[str, float]  # of the correction, as the trainer logs them

    @property
    def final(self) -> Array:
        """[tokens] weights, 0 where rejected."""
        weights = np.ones(len(self.kept)) if self.weights is None else self.weights
        return np.where(self.kept, weights, 0.0)


def applied(plan: Plan, name: str, batch: ReplayBatch, loss: str) -> Applied:
    """Decoupled: weights old / rollout, anchor old. Bypass: both of current against rollout.

    Source: reference/verl.md 3, "bypass_mode" step by step, and "Decoupled".
    """
    correction = plan.corrections[name]
    bypass = correction.mode == "bypass"
    target = "current" if bypass else "old"
    effects, metrics = _effects(plan, correction, batch, target)
    if not bypass:
        return Applied("decoupled", loss, batch.old, effects.kept, effects.weights, metrics)
    kind = "reinforce" if correction.loss == "reinforce" else "vanilla"
    weights = effects.weights if kind == "reinforce" else None
    return Applied("bypass", kind, batch.rollout, effects.kept, weights, metrics)


def naive(batch: ReplayBatch, loss: str) -> Applied:
    """What happens without any correction: PPO against the trainer's own log-probs."""
    return Applied("naive", loss, batch.old, np.ones(batch.num_tokens, np.bool_), None, {})


def _effects(
    plan: Plan, correction: Correction, batch: ReplayBatch, target: str
) -> tuple[TokenEffects, Mapping[str, float]]:
    quantities = [*plan.trainer.quantities(correction), *quantities_of(correction)]
    with np.errstate(all="ignore"):
        pair = batch.pair("rollout", target)
        tokens, rows = (
            Tokens(pair.log_ratio),
            rows_of(
                pair,
                list(dict.fromkeys(quantities)),
                batch.empty,
                keep_ratios=plan.trainer.percentiles,
            ),
        )
        effects = token_effects(correction, tokens, rows)
        metrics = plan.trainer.metrics(Batch(rows), correction)
    if effects.weights is None or not correction.batch_normalize:
        return effects, metrics
    factor = _factor(plan.trainer.name, metrics, Batch(rows))
    return TokenEffects(effects.kept, effects.weights / factor), metrics


def _factor(trainer: str, metrics: Mapping[str, float], batch: Batch) -> float:
    """The mean that the weights are divided by, as the trainer has it.

    slime logs the mean over rows of that number, with 0 for a row without a token.
    """
    found: Any = next(v for key, v in metrics.items() if key.endswith("batch_norm_factor"))
    return float(found) * (batch.all_rows / len(batch.rows) if trainer == "slime" else 1.0)


NAIVE = "naive"
DRAWN = 300  # tokens of a preset that are drawn
WEIGHT_EDGES = np.linspace(-4.0, 2.0, 121)  # log10 of a weight


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """How the trainer makes a loss of a batch."""

    loss: str
    settings: LossSettings
    advantage: str  # column, grpo, ...
    rebaseline: bool = False  # advantages anew, without the rejected rows

    @property
    def clip_range(self) -> tuple[float, float]:
        """Of the PPO ratio."""
        return 1.0 - self.settings.clip_low, 1.0 + self.settings.clip_high


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """One preset on one batch, before it is put in words."""

    applied: Applied
    batch: ReplayBatch  # with the advantages that were used
    result: LossResult

    @property
    def coefficients(self) -> Array:
        """[tokens] d loss / d current log-prob."""
        return self.result.coefficients


def evaluated(plan: Plan, name: str, batch: ReplayBatch, update: Update) -> Evaluated:
    """The loss of a preset (or `naive`) on a batch, and its exact derivative."""
    found = naive(batch, update.loss) if name == NAIVE else applied(plan, name, batch, update.loss)
    if update.rebaseline:
        computed = "grpo" if update.advantage == "column" else update.advantage
        advantages = without_rejected(batch, found.kept, computed)
        batch = replace(batch, advantages=advantages)
    return evaluated_as(found, batch, update, plan.trainer.name)


def evaluated_as(found: Applied, batch: ReplayBatch, update: Update, trainer: str) -> Evaluated:
    """The same for weights and mask that are made already."""
    given = loss_batch(
        batch.current,
        found.anchor,
        batch.advantages,
        # Rows without a token come last: some losses and denominators count them.
        np.concatenate([batch.lengths, np.zeros(batch.empty, np.int64)]),
        kept=found.kept,
        weights=found.weights,
        padded_width=batch.width,
        rollout=batch.rollout,
    )
    return Evaluated(found, batch, evaluate(given, found.loss, update.settings, trainer))


def preset_replay(
    plan: Plan,
    name: str,
    done: Evaluated,
    factors: dict[str, Factor],
    **model_parts,
) -> PresetReplay:
    """In numbers and words; `model_parts` are `gradient` and `after_step`, where a model ran."""
    found, batch, result = done.applied, done.batch, done.result
    kept_rows = segment_sum(found.kept.astype(np.int64), batch.lengths) > 0
    metrics = {**found.metrics, **result.metrics}
    shared = shares(result.coefficients, batch)
    gradient, after = model_parts.get("gradient"), model_parts.get("after_step")
    evidence = Evidence(
        mode=found.mode,
        loss_type=found.loss,
        undefined=result.undefined or _no_number(result),
        metrics=metrics,
        factors=factors,
        kept_token_share=float(found.kept.mean()),
        kept_sequence_share=float(kept_rows.mean()),
        ess_seq=_ess(found.final, batch),
        shares=shared,
        gradient=gradient,
        after=after,
        uncorrected=name == NAIVE or plan.corrections[name].leaves_loss_alone,
        double_counted=_double_counted(plan, name),
    )
    return PresetReplay(
        mode=found.mode,
        loss_type="ppo_clip" if found.loss == "vanilla" else found.loss,
        config={} if name == NAIVE else dict(plan.configs[name]),
        loss=None if result.undefined else result.loss,
        undefined=result.undefined,
        metrics=metrics,
        coefficients=coefficient_numbers(result.coefficients),
        shares=shared,
        denominator=Denominator(**asdict(result.divided)),
        kept_tokens=int(found.kept.sum()),
        kept_sequences=int(kept_rows.sum()),
        gradient=gradient,
        after_step=after,
        split=model_parts.get("split"),
        health=health(evidence),
        scatter=_scatter(done),
        weights=_weights(found),
    )


def _no_number(result: LossResult) -> str | None:
    """Why there is no step although something is kept."""
    if np.isfinite(result.loss) and np.isfinite(result.coefficients).all():
        return None
    return "the loss or its gradient is not a finite number"


def _ess(final: Array, batch: ReplayBatch) -> float | None:
    """(sum m)^2 / (n sum m^2) over sequences, m the mean weight of their tokens."""
    means = segment_sum(final, batch.lengths) / batch.lengths
    squares = float(np.square(means).sum())
    if not squares or not np.isfinite(squares):
        return None
    return float(means.sum() ** 2 / (len(means) * squares))


def _double_counted(plan: Plan, name: str) -> bool:
    if name == NAIVE:
        return False
    correction = plan.corrections[name]
    bypass = correction.mode == "bypass" and correction.loss == "ppo_clip"
    return bypass and correction.weighting is not None


def _weights(found: Applied) -> Histogram | None:
    """Counts of kept tokens by the size of their weight; those of 0 are in the lowest bin."""
    if found.weights is None:
        return None
    kept = found.weights[found.kept]
    logs = np.full(len(kept), WEIGHT_EDGES[0])
    np.log10(kept, out=logs, where=kept > 0)
    counts, _ = np.histogram(np.clip(logs, WEIGHT_EDGES[0], WEIGHT_EDGES[-1]), WEIGHT_EDGES)
    return {"edges": WEIGHT_EDGES.tolist(), "counts": counts.astype(float).tolist()}


def _scatter(done: Evaluated) -> list[list[float]]:
    """Log-prob, advantage and coefficient of a few tokens that are pulled at, by a hash."""
    pulled = np.flatnonzero(done.coefficients)
    keys = mixed(pulled.astype(np.uint64))
    some = np.sort(pulled[np.argsort(keys, kind="stable")[:DRAWN]])
    columns = (done.batch.current, done.batch.advantages, done.coefficients)
    rows = np.stack([column[some] for column in columns], axis=1)
    return [[float(f"{value:.4g}") for value in row] for row in rows[np.isfinite(rows).all(axis=1)]]
