"""Settings of the training in `rcdiag replay`."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, by_hand, said

_MODEL = "rcdiag replay rollouts.parquet --model CHECKPOINT"

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
        see=("model", "norm_by_layer"),
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
        example=f"{_MODEL} --epochs 2",
        see=("minibatches",),
    ),
    "minibatches": said(
        what="Optimizer steps of one pass; of `split` how many the batch was cut into. From the "
        "second on current is not old, and the PPO ratio not 1.",
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
        healthy="where ESS is low: times sqrt(ESS / ESS on policy) (rcdiag's proposal)",
        example=f"{_MODEL} --lr 1e-6",
        see=("optimizer", "step_norm", "ESS"),
    ),
    "max_grad_norm": said(
        what="Longer gradients are scaled down to this norm; null: never.",
        example=f"{_MODEL} --max-grad-norm 1",
        see=("grad_norm", "optimizer"),
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
    TRAINING,
)
