"""A trainer's update on a batch: the corrections to replay, the loss and its aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.errors import RcdiagError, one_of, setting
from rcdiag.losses.policy_loss import PolicyLoss
from rcdiag.losses.settings import CLIP_HIGH, CLIP_LOW, Denominator, LossSettings
from rcdiag.results import Finding
from rcdiag.trainers.loss_choice import LossChoice
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.replay.token_advantages import advantage_source

NAIVE = "naive"  # the update without any correction
# {"tau_pos": 2} or ["tau_pos=2"]
LossSettingValues = Mapping[str, Any] | Sequence[str]


class TrainerUpdate(Struct, frozen=True, kw_only=True):
    """A trainer's update, which is replayed with each of the plan's corrections."""

    plan: Plan
    loss: str  # in decoupled mode
    settings: LossSettings
    advantage: str  # source of advantages: column, grpo, ...
    rebaseline: bool = False  # recompute advantages without the rejected rows

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the presets and of the update without any correction."""
        return (*self.plan.corrections, NAIVE)

    @property
    def clip(self) -> tuple[float, float]:
        """Return how far below and above 1 the loss's clip lets the PPO ratio go."""
        reads = {one.name: one for one in self.plan.trainer.update.loss(self.loss).settings}
        low, high = (reads.get(one.name, one) for one in (CLIP_LOW, CLIP_HIGH))
        return self.settings.value(low), self.settings.value(high)

    @property
    def clip_range(self) -> tuple[float, float]:
        """Return the range in which the PPO ratio is not clipped."""
        low, high = self.clip
        return 1.0 - low, 1.0 + high


def chosen_update(
    plan: Plan,
    columns: Sequence[str],
    *,
    loss: str | None,
    loss_settings: LossSettingValues,
    aggregation: str | None,
    denominator: str | None,
    constant: float | None,
    loss_scale_factor: float | None,
    advantage: str | None,
    rebaseline: bool,
    **settings: float | None,
) -> TrainerUpdate:
    """Return the update that the user chose, for a table with these columns.

    None stands for the trainer's own choice. `settings` are settings of single losses that have
    options of their own.
    """
    rules = plan.trainer.update
    file = LossChoice() if plan.document is None else plan.trainer.config.loss(plan.document)
    if file.refused and loss is None:
        raise RcdiagError(file.refused, hint=f"take another: {setting('loss', 'NAME')}")
    name = loss or file.loss or next(iter(rules.losses))
    policy_loss = rules.loss(name, whose=plan.trainer.name)
    own = _of_options(plan, policy_loss, settings) | policy_loss.parsed(loss_settings)
    reads = {one.name: one for one in policy_loss.settings}
    of_file = {  # checked like settings of the user
        key: value if value is None else reads[key].parsed(str(value))
        for key, value in file.own.items()
        if key in reads
    }
    if denominator is None and constant is None:
        divisor, count = cast(Denominator | None, file.denominator), file.constant
    else:
        divisor, count = _denominator(denominator, constant), constant
    chosen = rules.defaults.changed(
        **{**of_file, **own},
        aggregation=aggregation or file.aggregation or rules.defaults.aggregation,
        denominator=divisor,
        constant=count,
        scale_factor=loss_scale_factor or file.scale_factor or rules.defaults.scale_factor,
    )
    if file.says_something:
        plan = replace(plan, findings=(*plan.findings, _said(file, name, chosen)))
    reduction = rules.aggregation("", chosen)
    if loss_scale_factor is not None and reduction.horizon == "none":
        raise RcdiagError(
            f"{setting('loss_scale_factor')}: {reduction.name} has none",
            hint=setting("aggregation", "seq-mean-token-sum-norm"),
        )
    source = advantage_source(advantage, columns)
    return TrainerUpdate(
        plan=plan, loss=name, settings=chosen, advantage=source, rebaseline=rebaseline
    )


def _of_options(
    plan: Plan, policy_loss: PolicyLoss, options: Mapping[str, float | None]
) -> dict[str, Any]:
    """Return settings that have options of their own, as the loss reads them that has each.

    A preset may bring its own policy loss, which comes before that of the update.
    """
    rules = plan.trainer.update
    of_presets = [
        rules.loss(rules.loss_of_type(one.loss))
        for one in plan.corrections.values()
        if one.has_own_loss
    ]
    own: dict[str, Any] = {}
    for key, value in options.items():
        if value is not None:
            reader = next((one for one in of_presets if one.reads(key)), policy_loss)
            own[key] = reader.setting(key).parsed(str(value))
    return own


def _said(file: LossChoice, loss: str, settings: LossSettings) -> Finding:
    """Report what the update takes from the trainer's configuration."""
    words = ", ".join(f"{name} {settings.own[name]}" for name in file.own if name in settings.own)
    parts = [f"loss {loss}", f"aggregation {settings.aggregation}", *([words] if words else [])]
    message = f"replayed as the trainer's configuration file asks: {', '.join(parts)}"
    return Finding(
        slug="loss-of-trainer-config",
        severity="note",
        message="; ".join([message, *file.notes]),
        fix=f"to replay another one: {setting('loss', 'NAME')} and {setting('clip_low', 0.2)} "
        "override the file",
        evidence={"loss": loss, "aggregation": settings.aggregation, **file.own},
    )


def _denominator(name: str | None, constant: float | None) -> Denominator | None:
    """Check a denominator: `constant` needs a number, the others take none."""
    if name is not None:
        one_of("denominator", name, get_args(Denominator))
    if (name == "constant") != (constant is not None):
        raise RcdiagError(
            f"{setting('denominator', 'constant')} and {setting('constant', 'N')} go together",
            hint=f"also give the divisor of a step, for example {setting('constant', 1024)}",
        )
    return cast(Denominator | None, name)
