"""The choices of an update in `rcdiag replay`, by the names that results have.

Names of factors come from their registry; advantages have entries of their own.
"""

from __future__ import annotations

from rcdiag.entry import Entry
from rcdiag.glossary.kinds import Kind, by_hand
from rcdiag.usecases.replay.factors import FACTORS

_REPLAY = "rcdiag replay rollouts.parquet"

COLUMN = Entry(
    what="Advantages as the table has them, in `advantages` by token or `advantage` by sequence.",
    direction="advantages above 0 make tokens more likely",
    example=f"{_REPLAY} --advantage column",
    see=("advantage",),
)
_FACTORS = {
    "mismatch": "Sampler to trainer: the same weights in two programs, and whatever differs there",
    "staleness": "Trainer before the update to the policy that is updated: the update's own way",
    "product": "Both together: what bypass mode puts into its one ratio",
}


def _factor(name: str) -> Entry:
    behavior, target = FACTORS[name]
    whole = "mismatch x staleness = product, token by token"
    return Entry(
        what=f"{_FACTORS[name]}. One of the two factors of the ratio current / rollout, or both.",
        formula=f"ratio = {target} / {behavior} probability; {whole}",
        direction=f"KL({behavior} || {target})",
        healthy=None if name == "product" else f"ideal: k3_kl 0; for bounds see {name}_k3",
        example=f"{_REPLAY} --json | jq .factors.{name}.k3_kl",
        see=("k3_kl", "ess_seq", *(() if name == "product" else (f"{name}_k3",))),
    )


WRITTEN_CHOICES: dict[str, Entry] = {
    "naive": Entry(
        what="The update without any correction: PPO against the trainer's own log-probs before "
        "it; what the presets are compared with.",
        formula="loss(current / old), no weights, nothing rejected",
        example=f"{_REPLAY} --json | jq .presets.naive.health.verdict",
        see=("decoupled", "bypass", "uncorrected_ess"),
    ),
    "seq_is": Entry(
        what="Reference by untruncated weights of whole sequences: unbiased, and noisy where "
        "sequences are long (Owen 2013, Monte Carlo theory, section 9.1).",
        formula="sum over tokens of -A prod(old / rollout) / N d log p, the product over the "
        "sequence",
        healthy="where ess_seq x sequences is below 30 it is not to be believed (rcdiag's "
        "proposal)",
        example=f"{_REPLAY} --model CHECKPOINT --reference seq_is",
        see=("reference", "fresh", "ess_seq"),
    ),
    "fresh": Entry(
        what="Reference by new samples of the policy itself on the same prompts: no ratio is "
        "needed. It needs --reward.",
        formula="sum over tokens of -A / N d log p",
        example=f"{_REPLAY} --model CHECKPOINT --reference fresh --reward reward.py:reward",
        see=("reference", "seq_is"),
    ),
    "reference.none": Entry(
        what="No reference: cosine, norm_ratio and squared_bias are null.",
        example=f"{_REPLAY} --model CHECKPOINT --reference none",
        see=("reference",),
    ),
    "sgd": Entry(
        what="Optimizer: the step is the gradient times the learning rate, with momentum if set.",
        formula="weights - learning_rate x gradient",
        example=f"{_REPLAY} --model CHECKPOINT --optimizer sgd --lr 0.1",
        see=("optimizer", "adamw"),
    ),
    "adamw": Entry(
        what="Optimizer: the step is scaled by parameter. Its first step is nearly the sign of the "
        "gradient, so that a gradient of half the size moves as far.",
        formula="weights - learning_rate x m / (sqrt(v) + 1e-8), m and v means of the gradient and "
        "of its square",
        example=f"{_REPLAY} --model CHECKPOINT --optimizer adamw --lr 1e-6",
        see=("optimizer", "sgd"),
    ),
}

CHOICES: dict[str, Entry] = {
    "column": COLUMN,
    **{name: _factor(name) for name in FACTORS},
    **WRITTEN_CHOICES,
}

KIND: Kind = by_hand("choice of a replay", "What can be chosen in `rcdiag replay`", CHOICES)
