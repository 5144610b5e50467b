"""Settings of the losses of `rcdiag replay`, and of its training.

Source: reference/verl.md 3. Defaults of losses come from rcdiag/losses/settings.py.
"""

from __future__ import annotations

from dataclasses import fields

from rcdiag.glossary.describe import plain
from rcdiag.glossary.entry import Entry, by_hand, said
from rcdiag.glossary.generations import SLIME, VERL, label
from rcdiag.losses.settings import LossSettings

_MODEL = "rcdiag replay rollouts.parquet --model CHECKPOINT"
_DEFAULTS = {field.name: field.default for field in fields(LossSettings)}


def _setting(
    what: str, name: str, example: str, *see: str, verl: str | None = None, since: str = VERL[0]
) -> Entry:
    """A setting of a loss, with its default."""
    trainers = label(VERL[VERL.index(since) :])
    return said(
        what=what,
        generations={trainers: f"{verl or name}, default {plain(_DEFAULTS[name])}"}
        | ({label(SLIME): "--eps-clip-c, off by default"} if name == "clip_c" else {}),
        example=example,
        see=see,
    )


_LOW = (
    "How far below 1 the PPO ratio may go before the clip acts, where the advantage is below 0. "
    "DPPO and GMPO take it for bounds of their own."
)
_HIGH = (
    "How far above 1 the PPO ratio may go before the clip acts, where the advantage is above 0. "
    "Raised alone it is clip-higher, e.g. 0.28."
)
_DUAL = "Dual clip: where the advantage is below 0 no loss is above -A times it. Must be above 1."
_COEF = "Of kl_cov: what the penalty |d| is multiplied by. verl's docstring says 1, its config 0.1."
_SHARE = "Of kl_cov: share of the tokens that get the penalty, one at least."
_POS = "Of sapo: how steep the gate is where the advantage is above 0."
_BETA = "Of dro: how strong the pull back to the old policy is; must be given, above 0."
_SCALE = "Of seq-mean-token-sum-norm: the constant length; the padded width without it."
_NORM, _CLIP, _LOWER = "seq-mean-token-sum-norm", "actor/pg_clipfrac", "actor/pg_clipfrac_lower"

SETTINGS: dict[str, Entry] = {
    "clip_low": _setting(
        _LOW, "clip_low", "0.2: ratios below 0.8", "clip_high", _CLIP, verl="clip_ratio_low"
    ),
    "clip_high": _setting(
        _HIGH, "clip_high", "0.28: ratios above 1.28", "clip_low", _CLIP, verl="clip_ratio_high"
    ),
    "clip_c": _setting(
        _DUAL, "clip_c", "A = -1, ratio 4: loss 3", "vanilla", _LOWER, verl="clip_ratio_c"
    ),
    "tau_pos": _setting(_POS, "tau_pos", "rcdiag explain sapo", "sapo", since="verl-0.7.0"),
    "tau_neg": _setting(
        "Of sapo: how steep the gate is elsewhere.",
        "tau_neg",
        "rcdiag explain sapo",
        "sapo",
        since="verl-0.7.0",
    ),
    "kl_cov_ratio": _setting(_SHARE, "kl_cov_ratio", "10,000 tokens: two of them", "kl_cov"),
    "ppo_kl_coef": _setting(_COEF, "ppo_kl_coef", "log_ratio -0.5: + 0.05", "kl_cov"),
    "dro_beta": _setting(_BETA, "dro_beta", "--loss dro --dro-beta 0.1", "dro", since="verl-0.9"),
    "scale_factor": _setting(
        _SCALE,
        "scale_factor",
        f"rcdiag explain {_NORM}",
        _NORM,
        verl="loss_scale_factor",
        since="verl-20251203",
    ),
}

TRAINING: dict[str, Entry] = {
    "dtype": said(
        what="Precision of the trained model; weights are stepped in float32 whatever it is.",
        example=f"{_MODEL} --precision bfloat16",
        see=("model", "options"),
    ),
    "options": said(
        what="Options of the model beside its dtype, as in --policy.",
        example=f"{_MODEL} --precision float32,autocast=bfloat16",
        see=("model", "dtype"),
    ),
    "lora_rank": said(
        what="Rank of the adapters that are trained in place of the weights; null without.",
        example=f"{_MODEL} --lora 16",
        see=("model", "norm"),
    ),
    "checkpointing": said(
        what="Whether activations are computed again in the backward pass: less memory, more time, "
        "the same numbers.",
        example=f"{_MODEL} --checkpointing",
        see=("model",),
    ),
    "reference": said(
        what="What gradients are held against: seq_is, fresh or none.",
        example=f"{_MODEL} --reference seq_is",
        see=("seq_is", "fresh", "reference.none", "cosine"),
    ),
    "epochs": said(
        what="Passes over the batch.",
        generations={label(VERL): "ppo_epochs, default 1"},
        example=f"{_MODEL} --epochs 2",
        see=("minibatches",),
    ),
    "minibatches": said(
        what="Optimizer steps of one pass; of `split` how many the batch was cut into. From the "
        "second on current is not old, and the PPO ratio not 1.",
        generations={label(VERL): "rows of a step / ppo_mini_batch_size"},
        example=f"{_MODEL} --minibatches 4; --split 4",
        see=("epochs", "split", "staleness"),
    ),
    "backwards": said(
        what="Backward passes that all gradients took together: those of presets that are alike "
        "are shared.",
        units="passes",
        example=f"{_MODEL} --json | jq .model.backwards",
        see=("updates", "gradient"),
    ),
    "updates": said(
        what="Updates that were computed: presets and `naive`.",
        example=f"{_MODEL} --json | jq .model.updates",
        see=("backwards", "presets"),
    ),
    "optimizer": said(
        what="The optimizer of the step: adamw or sgd.",
        example=f"{_MODEL} --optimizer sgd",
        see=("adamw", "sgd", "learning_rate"),
    ),
    "learning_rate": said(
        what="Learning rate of the step; no schedule.",
        healthy="a rule of thumb where ESS is low: times sqrt(ESS / ESS on policy) (theory.md 4.3)",
        example=f"{_MODEL} --lr 1e-6",
        see=("optimizer", "step_norm", "ESS"),
    ),
    "max_grad_norm": said(
        what="Longer gradients are scaled down to this norm; null: never.",
        generations={label(VERL): "logs the norm before it as actor/grad_norm"},
        example=f"{_MODEL} --max-grad-norm 1",
        see=("norm", "optimizer"),
    ),
    "weight_decay": said(
        what="Weight decay of the optimizer.",
        example=f"{_MODEL} --weight-decay 0.01",
        see=("optimizer",),
    ),
}

KIND = by_hand(
    "setting of an update",
    "Settings of an update in `rcdiag replay`",
    {**SETTINGS, **TRAINING},
)
