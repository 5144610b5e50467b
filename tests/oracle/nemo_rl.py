"""NeMo-RL's own loss and sequence filter out of a checkout: one global batch of all rows."""

from __future__ import annotations

import enum
from functools import cache
from types import SimpleNamespace
from typing import Any, Optional, Protocol, TypedDict, TypeVar

import numpy as np

from tests.oracle.cases import corrected_case, updated_case
from tests.oracle.checkouts import Checkout
from tests.oracle.published import arithmetic
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import WITHOUT_INFINITY as BATCHES
from tests.trainers.batches import Batch

NEMO_RL = Checkout("NeMo-RL", "RCDIAG_NEMO_RL", "https://github.com/NVIDIA-NeMo/RL", "7ea279ab")
LOSS_FILE = "nemo_rl/algorithms/loss/loss_functions.py"
THRESHOLD = "seq_logprob_error_threshold"
# Logged metrics of the policy in the update, and counts, unrelated to the correction.
OF_LOSS = ("probs_ratio", "loss", "kl_penalty", "approx_entropy", "positive_nll")
IS: Settings = {"use_importance_sampling_correction": True}
GSPO: Settings = {"sequence_level_importance_ratios": True, "token_level_loss": False}


def _of(kind: str, upper: float, lower: float | None = None) -> Settings:
    name = "truncated_importance_sampling_ratio"
    bounds = {name: upper} if lower is None else {name: upper, f"{name}_min": lower}
    return {**IS, "truncated_importance_sampling_type": kind, **bounds}


CORRECTIONS: list[Settings] = [
    {},
    IS,
    _of("tis", 2.0),
    _of("tis", 1.03),
    _of("tis", 1.03, 0.97),
    _of("icepop", 5.0, 0.5),
    _of("icepop", 1.03, 0.97),
    _of("seq-mask-tis", 1.002, 0.999),
    _of("seq-mask-tis", 1.01, 0.97),
    {**IS, **GSPO},
    GSPO,
    {**_of("tis", 1.05), **GSPO},
    {**_of("icepop", 1.0, 0.9), **GSPO},
    {**_of("tis", 1.03), "token_level_loss": False},
    {**_of("tis", 1.05), **GSPO, THRESHOLD: 1.04},
    {THRESHOLD: 1.5},
    {THRESHOLD: 1.04},
    {**_of("icepop", 3.0, 0.6), THRESHOLD: 1.3},
    {**_of("seq-mask-tis", 1.01, 0.97), THRESHOLD: 1.04},
    {**_of("tis", 1.03, 0.97), THRESHOLD: 1.04},
    {"reference_policy_kl_type": "k1"},
    {"reference_policy_kl_type": "k2", **IS},
    {"force_on_policy_ratio": True},
    {"force_on_policy_ratio": True, THRESHOLD: 1.04, **_of("tis", 1.03)},
]
LOSSES: list[Settings] = [
    {},
    IS,
    _of("tis", 1.03, 0.97),
    {**_of("icepop", 1.03, 0.97), "token_level_loss": False},
    {**_of("seq-mask-tis", 1.01, 0.97), "ratio_clip_max": 0.28},
    {"token_level_loss": False},
    {"ratio_clip_c": 1.1},
    {"ratio_clip_c": 3.0, "ratio_clip_min": 0.1, "ratio_clip_max": 0.3},
    GSPO,
    {**IS, **GSPO},
    {**_of("tis", 1.05), **GSPO, "ratio_clip_c": 1.1},
    {"use_cispo": True},
    {"use_cispo": True, "ratio_clip_min": 1.0, "ratio_clip_max": 4.0, **_of("tis", 1.03)},
    {"disable_ppo_ratio": True},
    {"disable_ppo_ratio": True, **IS},
    {"force_on_policy_ratio": True, **IS},
    {THRESHOLD: 1.04},
    {**_of("tis", 1.03), THRESHOLD: 1.04, "token_level_loss": False},
]


@cache
def code() -> SimpleNamespace:
    """Return the loss, its settings and the filter."""
    import torch
    from pydantic import BaseModel

    space: dict[str, Any] = {"torch": torch, "enum": enum, "BaseModel": BaseModel}
    space |= {"Any": Any, "Optional": Optional, "TypedDict": TypedDict, "Protocol": Protocol}
    space |= {"LossFunction": object, "Tensor": TypeVar("Tensor"), "BatchedDataDict": dict}
    space |= {"print": lambda *texts, **options: None}
    take = NEMO_RL.definitions
    space |= take("nemo_rl/algorithms/utils.py", ("calculate_kl", "masked_mean"), space)
    names: tuple[str, ...] = ("LossType", "MetricNormalizer", "LossInputType")
    space |= take("nemo_rl/algorithms/loss/interfaces.py", names, space)
    space |= take(LOSS_FILE, ("ClippedPGLossConfig", "ClippedPGLossFn"), space)
    names = (
        "compute_and_apply_seq_logprob_error_masking",
        "_placeholder_seq_logprob_error_metrics",
    )
    space |= take("nemo_rl/algorithms/grpo.py", names, space)
    return SimpleNamespace(**space)


def _data(batch: Batch, dtype: Any) -> dict[str, Any]:
    """Return the batch as in the trainer: the first position is the prompt's, and is unused."""
    import torch

    columns = {
        "token_mask": batch.mask,
        "prev_logprobs": batch.old,
        "generation_logprobs": batch.rollout,
        "advantages": batch.token_advantages,
    }
    data = {
        name: torch.tensor(np.pad(values.astype(np.float64), ((0, 0), (1, 0)))).to(dtype)
        for name, values in columns.items()
    }
    return data | {"sample_mask": torch.ones(len(batch.mask), dtype=dtype)}


def filtered(data: dict[str, Any], rewards: np.ndarray, settings: Settings) -> dict[str, float]:
    """Apply the filter to the batch, and give what is logged of it."""
    import torch

    threshold = settings.get(THRESHOLD)
    if settings.get("force_on_policy_ratio") and threshold is None:
        return code()._placeholder_seq_logprob_error_metrics()
    given = torch.tensor(rewards)
    logged = code().compute_and_apply_seq_logprob_error_masking(data, given, threshold)
    logged["num_masked_seqs_by_logprob_error"] = logged.pop("num_masked_seqs")
    return logged


def _loss(settings: Settings, data: dict[str, Any], current: Any) -> tuple[Any, dict[str, float]]:
    own = {name: value for name, value in settings.items() if name != THRESHOLD}
    config = code().ClippedPGLossConfig(reference_policy_kl_penalty=0.0, **own)
    mask = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
    return code().ClippedPGLossFn(config)(current, data, data["sample_mask"].sum(), mask.sum())


def weights_of(settings: Settings, rows: Batch, dtype: Any) -> np.ndarray | None:
    """Return token weights before the filter, as the gradient of a loss of log-probs."""
    import torch

    if not settings.get("use_importance_sampling_correction"):
        return None
    data = _data(rows, dtype)
    data["advantages"] = torch.full_like(data["advantages"], -1.0)
    current = data["prev_logprobs"][:, 1:].clone().requires_grad_()
    plain = {"use_cispo": False, "ratio_clip_c": None, "force_on_policy_ratio": False}
    loss, _ = _loss({**settings, **plain, "disable_ppo_ratio": True}, data, current)
    loss.backward()
    assert current.grad is not None
    mask = rows.mask.astype(np.float64)
    counts = mask.sum() + 1e-8
    if settings.get("token_level_loss") is False:
        counts = (mask.sum(axis=1, keepdims=True) + 1e-8) * (len(mask) + 1e-8)
    return current.grad.numpy() * counts


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Run the correction in a first update, in which current = old."""
    rows = BATCHES[batch]
    with arithmetic(dtype) as wide:
        weights = weights_of(settings, rows, wide)
        data = _data(rows, wide)
        of_sequences = filtered(data, np.zeros(len(rows.mask)), settings)
        _, of_loss = _loss(settings, data, data["prev_logprobs"][:, 1:])
    logged = {name: value for name, value in of_loss.items() if not name.startswith(OF_LOSS)}
    kept = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
    metrics = {f"train/{name}": value for name, value in (logged | of_sequences).items()}
    return corrected_case(batch, settings, dtype, weights, metrics, kept)


def updated(batch: str, settings: Settings) -> Updated:
    """Run the loss on one global batch."""
    import torch

    rows = BATCHES[batch]
    with arithmetic("float64") as wide:
        data = _data(rows, wide)
        filtered(data, np.zeros(len(rows.mask)), settings)
        current = torch.tensor(rows.current).requires_grad_()
        loss, logged = _loss(settings, data, current)
        loss.backward()
    metrics = {
        # If no micro-batch has a token, `grpo_train` logs -1 for an extreme.
        f"train/{name}": -1.0 if np.isinf(value) else value
        for name, value in logged.items()
        if name.startswith(("probs_ratio", "approx_entropy"))
    }
    return updated_case(batch, settings, loss, current.grad, metrics)


def answers() -> Answers:
    """Return all stored results of NeMo-RL."""
    return Answers(
        trainer="nemo-rl",
        source=f"NVIDIA-NeMo/RL commit {NEMO_RL.commit}, {LOSS_FILE}: ClippedPGLossFn; "
        "nemo_rl/algorithms/utils.py: calculate_kl, masked_mean; nemo_rl/algorithms/grpo.py: "
        "compute_and_apply_seq_logprob_error_masking",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in BATCHES),
            *(
                corrected(batch, settings, "float32")
                for settings in (CORRECTIONS[6], CORRECTIONS[18])
                for batch in BATCHES
            ),
        ],
        losses=[
            updated(batch, settings) for settings in LOSSES for batch in ("mild", "rough", "beyond")
        ],
    )
