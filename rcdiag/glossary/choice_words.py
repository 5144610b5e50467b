"""What can be chosen of an update in `rcdiag replay`, by the names that results have.

Sources: reference/verl.md 3, reference/theory.md 2.7. Names of advantages and factors come from
their registries.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rcdiag.glossary.entry import Entry, by_hand, said
from rcdiag.glossary.generations import SLIME, VERL, label
from rcdiag.usecases.replay.batch import ADVANTAGES
from rcdiag.usecases.replay.factors import FACTORS

_REPLAY = "rcdiag replay rollouts.parquet"

_BASELINE = "advantages above 0 make tokens more likely"
_OF: dict[str, tuple[str, str, str]] = {
    "grpo": (
        "Reward less the mean of its prompt group, over the group's spread; a group of one keeps "
        "its reward (arXiv 2402.03300).",
        "(reward - mean) / (std + 1e-6), std with n - 1",
        "adv_estimator: grpo",
    ),
    "rloo": (
        "Reward less the mean of the others of its prompt group; a group of one keeps its reward "
        "(arXiv 2402.14740).",
        "n / (n - 1) (reward - mean)",
        "adv_estimator: rloo",
    ),
    "reinforce++": (
        "Reward whitened over all tokens of the batch, whatever the group (arXiv 2501.03262).",
        "(reward - mean over tokens) / sqrt(variance over tokens + 1e-8)",
        "adv_estimator: reinforce_plus_plus",
    ),
}


def _worked(name: str) -> str:
    """Three samples of one prompt."""
    found = ADVANTAGES[name](np.array([1.0, 0.0, 0.0]), np.zeros(3), np.array([2, 2, 2]))
    values = ", ".join(f"{value:.4g}" for value in found)
    return f"rewards 1, 0, 0 of one prompt, two tokens each: {values}"


@cache
def advantages() -> dict[str, Entry]:
    """Computed ones, by their registry, and the column of the table."""
    found = {
        name: said(
            what=f"{_OF[name][0]} Of each sequence, the same for all its tokens.",
            formula=_OF[name][1],
            direction=_BASELINE,
            generations={label(VERL): _OF[name][2]},
            example=_worked(name),
            see=("advantage", "column", "rejected-in-baseline"),
        )
        for name in ADVANTAGES
    }
    return found | {
        "column": said(
            what="Advantages as the table has them, in `advantages` by token or `advantage` by "
            "sequence.",
            direction=_BASELINE,
            example=f"{_REPLAY} --advantage column",
            see=("advantage",),
        )
    }


_FACTORS = {
    "mismatch": "Sampler to trainer: the same weights in two programs, and whatever differs there",
    "staleness": "Trainer before the update to the policy that is updated: the update's own way",
    "product": "Both together: what bypass mode puts into its one ratio",
}


def _factor(name: str) -> Entry:
    behavior, target = FACTORS[name]
    whole = "mismatch x staleness = product, token by token"
    return said(
        what=f"{_FACTORS[name]}. One of the two factors of the ratio current / rollout, or both.",
        formula=f"ratio = {target} / {behavior} probability; {whole}",
        direction=f"KL({behavior} || {target})",
        healthy=None if name == "product" else f"ideal: k3_kl 0; for bounds see {name}_k3",
        example=f"{_REPLAY} --json | jq .factors.{name}.k3_kl",
        see=("k3_kl", "ess_seq", *(() if name == "product" else (f"{name}_k3",))),
    )


OTHERS: dict[str, Entry] = {
    "naive": said(
        what="The update without any correction: PPO against the trainer's own log-probs before "
        "it; what the presets are compared with.",
        formula="loss(current / old), no weights, nothing rejected",
        generations={label((*VERL, *SLIME)): "what happens where no correction is set"},
        example=f"{_REPLAY} --json | jq .presets.naive.health.verdict",
        see=("decoupled", "bypass", "uncorrected_ess"),
    ),
    "seq_is": said(
        what="Reference by untruncated weights of whole sequences: unbiased, and noisy where "
        "sequences are long (theory.md 2.7).",
        formula="sum over tokens of -A prod(old / rollout) / N d log p, the product over the "
        "sequence",
        healthy="where ess_seq x sequences is below 30 it is not to be believed (theory.md 4.3, "
        "step 4)",
        example=f"{_REPLAY} --model CHECKPOINT --reference seq_is",
        see=("reference", "fresh", "ess_seq"),
    ),
    "fresh": said(
        what="Reference by new samples of the policy itself on the same prompts: no ratio is "
        "needed (theory.md 2.7). Needs --reward.",
        formula="sum over tokens of -A / N d log p",
        example=f"{_REPLAY} --model CHECKPOINT --reference fresh --reward reward.py:reward",
        see=("reference", "seq_is"),
    ),
    "reference.none": said(
        what="No reference: cosine, norm_ratio and bias are null.",
        example=f"{_REPLAY} --model CHECKPOINT --reference none",
        see=("reference",),
    ),
    "sgd": said(
        what="Optimizer: the step is the gradient times the learning rate, with momentum if set.",
        formula="weights - learning_rate x gradient",
        example=f"{_REPLAY} --model CHECKPOINT --optimizer sgd --lr 0.1",
        see=("optimizer", "adamw"),
    ),
    "adamw": said(
        what="Optimizer: the step is scaled by parameter. Its first step is nearly the sign of the "
        "gradient, so that a gradient of half the size moves as far.",
        formula="weights - learning_rate x m / (sqrt(v) + 1e-8), m and v means of the gradient and "
        "of its square",
        example=f"{_REPLAY} --model CHECKPOINT --optimizer adamw --lr 1e-6",
        see=("optimizer", "sgd"),
    ),
}

CHOICES: dict[str, Entry] = {
    **advantages(),
    **{name: _factor(name) for name in FACTORS},
    **OTHERS,
}

KIND = by_hand("choice of a replay", "What can be chosen in `rcdiag replay`", CHOICES)
