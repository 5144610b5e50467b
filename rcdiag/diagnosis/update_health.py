"""Was the step safe? Named rules with their sources; to add one: a function and one line in RULES.

The verdict is the worst rule; where what decides is missing it is "cannot judge", never "ok".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rcdiag.results import AfterStep, Factor, GradientReport, Health, Rule, Shares
from rcdiag.statistics.metrics.metric import PROPOSAL


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rules look at."""

    mode: str
    loss_type: str
    undefined: str | None
    metrics: dict[str, float]
    factors: dict[str, Factor]
    kept_token_share: float
    kept_sequence_share: float
    ess_seq: float | None  # of the weights in the loss, rejected rows with weight 0
    shares: Shares | None
    gradient: GradientReport | None
    after: AfterStep | None
    uncorrected: bool  # nothing stands between the mismatch and the gradient
    double_counted: bool  # bypass weights on top of a PPO ratio that corrects already


def _rule(
    name: str, value: float | None, warning: float, error: float, said: str, source: str
) -> Rule:
    """`warning` < `error`: larger is worse; the other way round smaller is. A NaN is no value."""
    if value is None or math.isnan(value):
        return Rule(name=name, value=None, level="ok", said=said, source=source)
    worse = (lambda bound: value > bound) if warning < error else (lambda bound: value < bound)
    level = "error" if worse(error) else "warning" if worse(warning) else "ok"
    return Rule(name=name, value=value, level=level, said=said, source=source)


def _defined(e: Evidence) -> Rule:
    said = e.undefined or "the loss is defined"
    level = "error" if e.undefined else "ok"
    return Rule(name="loss_defined", value=None, level=level, said=said, source="verl.md 3")


def _kept(e: Evidence) -> Rule:
    said = f"{100 * e.kept_sequence_share:.1f}% of the sequences stay in the loss"
    source = "theory.md 4.4, acceptance; TRM 2512.23075"
    return _rule("kept_sequences", e.kept_sequence_share, 0.9, 0.7, said, source)


def _ess(e: Evidence) -> Rule:
    value = "n/a" if e.ess_seq is None else f"{e.ess_seq:.3f}"
    said = f"ESS of the sequences by their weights in the loss is {value}"
    return _rule("ess_seq", e.ess_seq, 0.5, 0.1, said, "theory.md 4.4")


def _mismatch(e: Evidence) -> Rule:
    """Of the batch: no error of a preset that corrects it."""
    value = e.factors["mismatch"].k3_kl.value
    said = f"sampler to trainer: {_short(value)} nats per token"
    error = 1e-2 if e.uncorrected else float("inf")
    return _rule("mismatch_k3", value, 1e-3, error, said, "theory.md 4.4, dense models")


def _staleness(e: Evidence) -> Rule:
    value = e.factors["staleness"].k3_kl.value
    said = f"trainer before the update to the policy that is updated: {_short(value)} nats"
    return _rule("staleness_k3", value, 1e-2, 1e-1, said, f"{PROPOSAL}; verl's guide |kl| < 0.1")


def _uncorrected(e: Evidence) -> Rule | None:
    """Without weights and rejection the mismatch goes straight into the gradient."""
    if not e.uncorrected:
        return None
    value = e.factors["mismatch"].ess_seq.value
    said = "no correction: all of the mismatch biases the gradient"
    return _rule("uncorrected_ess", value, 0.9, 0.5, said, PROPOSAL)


def _clipped(e: Evidence) -> Rule | None:
    value = e.metrics.get("actor/pg_clipfrac")
    if value is None:
        return None
    if e.mode == "bypass":
        said = f"the PPO clip acts on {100 * value:.1f}% of the tokens, mismatch included"
    else:
        said = f"the PPO clip acts on {100 * value:.1f}% of the tokens"
    return _rule("clip_fraction", value, 0.1, 0.3, said, f"{PROPOSAL}; theory.md 4.3, end")


def _dominated(e: Evidence) -> Rule | None:
    if e.shares is None:
        return None
    said = (
        f"the top 1% of the sequences hold {100 * e.shares.top_sequences:.0f}% of the loss's pull"
    )
    return _rule("top_sequences", e.shares.top_sequences, 0.2, 0.5, said, "theory.md 2.1, own")


def _double(e: Evidence) -> Rule | None:
    if not e.double_counted:
        return None
    said = "rollout_is beside ppo_clip in bypass mode: the ratio corrects already"
    return Rule(
        name="double_counting", value=None, level="warning", said=said, source="theory.md 4.3, end"
    )


def _direction(e: Evidence) -> Rule | None:
    if e.gradient is None or e.gradient.cosine.value is None:
        return None
    value = e.gradient.cosine.value
    said = f"cosine with the reference gradient is {value:.3f}"
    return _rule("cosine", value, 0.9, 0.5, said, f"{PROPOSAL}; theory.md 2.7")


def _moved(e: Evidence) -> Rule | None:
    if e.after is None:
        return None
    value = e.after.kl_old_new.value
    said = f"the step moves the policy by {_short(value)} nats per token"
    return _rule("kl_old_new", value, 1e-2, 1e-1, said, f"{PROPOSAL}; verl's guide |kl| < 0.1")


def _growing(e: Evidence) -> Rule | None:
    if e.after is None or e.after.mismatch_growth is None:
        return None
    value = e.after.mismatch_growth
    said = f"after the step the sampler is {value:.2g} times as far away as before"
    return _rule("mismatch_growth", value, 2.0, 10.0, said, f"{PROPOSAL}; IcePop 2510.18855")


RULES: tuple[Callable[[Evidence], Rule | None], ...] = (
    _defined,
    _kept,
    _ess,
    _mismatch,
    _staleness,
    _uncorrected,
    _clipped,
    _dominated,
    _double,
    _direction,
    _moved,
    _growing,
)
LEVELS = ("ok", "warning", "error")


def health(evidence: Evidence) -> Health:
    """All rules, and the worst of them."""
    rules = [found for rule in RULES if (found := rule(evidence)) is not None]
    missing = _missing(evidence)
    worst = max((rule.level for rule in rules), key=LEVELS.index)
    undecided = [rule.name for rule in rules if rule.value is None and rule.name in _NUMBERS]
    if worst == "ok" and undecided:
        worst = "cannot judge"
    return Health(verdict=worst, rules=rules, missing=[*missing, *undecided])


_NUMBERS = ("kept_sequences", "ess_seq", "mismatch_k3", "staleness_k3")


def _missing(e: Evidence) -> list[str]:
    if e.undefined:  # there is nothing to judge
        return []
    found = []
    if e.gradient is None:
        found.append("direction of the gradient: give --model")
    if e.after is None:
        found.append("the policy after the step: give --model")
    return found


def _short(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2g}"
