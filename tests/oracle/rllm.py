"""rLLM's own numbers: of verl 0.8.0 as rLLM calls it, and of its Fireworks backend.

The verl helper comes out of the wheel that rLLM installs; rLLM's and Fireworks' code comes out of
checkouts. Both take float32; in float64 they see a torch whose float32 is float64.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.oracle import verl
from tests.oracle.cases import corrected_case, updated_case
from tests.oracle.checkouts import Checkout
from tests.oracle.published import arithmetic, bare_class, space_of
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import BATCHES, Batch

RLLM = Checkout("rLLM", "RCDIAG_RLLM", "https://github.com/rllm-org/rllm", "9beb6e0f")
COOKBOOK = Checkout(
    "Fireworks' cookbook", "RCDIAG_COOKBOOK", "https://github.com/fw-ai/cookbook", "bba676c6"
)
POLICY_TRAINER = "rllm/trainer/fireworks/fireworks_policy_trainer.py"
RL = "training/utils/rl"
CORRECTIONS: list[Settings] = [
    {},
    {"tis_mode": "token"},
    {"tis_mode": "token", "tis_cap": 1.05},
    {"tis_mode": "token", "tis_cap": 5.0},
    {"tis_mode": "sequence"},
    {"tis_mode": "sequence", "tis_cap": 0.9},
    {"tis_mode": "sequence", "tis_cap": 1.02},
    {"tis_cap": 1.5},
    {"bypass_mode": True},
]
ON_VERL: list[Settings] = [
    *CORRECTIONS,
    {"tis_mode": "token", "tis_cap": "0.5_5.0"},
    {"tis_mode": "token", "tis_cap": "1.5"},
]
ON_FIREWORKS: list[Settings] = [*CORRECTIONS, {"bypass_mode": True, "tis_mode": "token"}]
LOSSES: list[Settings] = [
    {},
    {"loss_fn": "grpo", "loss_agg_mode": "token-mean"},
    {"tis_mode": "sequence", "tis_cap": 1.02, "loss_agg_mode": "seq-mean-token-sum"},
    {"tis_mode": "token", "tis_cap": 1.05, "loss_agg_mode": "seq-mean-token-mean"},
    {"tis_mode": "token", "eps_clip": 0.1},
    {"tis_mode": "token", "eps_clip": 0.1, "eps_clip_high": 0.3},
]


@contextmanager
def widened(dtype: str) -> Iterator[Any]:
    """Make new float32 tensors of the code use this dtype."""
    import torch

    wide = getattr(torch, dtype)
    with patch.object(torch, "float32", wide):
        yield wide


# verl's helper, as rLLM calls it.


def on_verl(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Return weights and logged metrics of rLLM's verl backend."""
    import torch

    rows, helper = BATCHES[batch], verl.helper("verl-0.8.0")
    wide = getattr(torch, dtype)
    rollout = torch.tensor(rows.rollout, dtype=wide)
    old = rollout if settings.get("bypass_mode") else torch.tensor(rows.old, dtype=wide)
    mask = torch.tensor(rows.mask, dtype=wide if dtype == "float64" else torch.int64)
    weights, logged = None, {}
    if settings.get("tis_mode") is not None:
        with arithmetic(dtype):
            weights, of_weights = helper.compute_rollout_correction_weights(
                log_ratio=old - rollout,
                response_mask=mask,
                rollout_is=settings["tis_mode"],
                rollout_is_threshold=settings.get("tis_cap", 2.0),
            )
        logged = {f"rollout_correction/{name}": float(one) for name, one in of_weights.items()}
    of_policies = helper.compute_offpolicy_metrics(old, rollout, mask)
    logged |= {f"offpolicy/{name}": float(value) for name, value in of_policies.items()}
    return corrected_case(batch, settings, dtype, weights, logged)


# The Fireworks backend.


@cache
def cookbook() -> SimpleNamespace:
    """Return the functions for weights, data for the servers, and the client's loss."""
    import dataclasses
    import typing

    space = space_of(
        **{name: getattr(typing, name) for name in ("Any", "List", "Dict", "Tuple", "Callable")},
        dataclass=dataclasses.dataclass,
        field=dataclasses.field,
        tinker=SimpleNamespace(Datum=_Fields, TensorData=_Fields),
    )
    take = COOKBOOK.definitions
    space |= take(f"{RL}/tis.py", ("SAFETY_CLAMP", "TISConfig", "compute_tis_weight"), space)
    common = (
        *("_get_loss_mask", "_format_policy_loss_label", "_normalize_prompt_lens"),
        *("validate_inference_logprobs_for_sample", "LossLoopResult", "run_loss_loop"),
    )
    names = _defined(f"{RL}/common.py")
    space |= take(f"{RL}/common.py", [*common, *(names - set(common))], space)
    space |= take(f"{RL}/losses.py", ("build_builtin_loss_datums",), space)
    space |= take(f"{RL}/grpo.py", ("make_grpo_loss_fn",), space)
    return SimpleNamespace(**space)


def _defined(file: str) -> set[str]:
    tree = ast.parse(Path(COOKBOOK.folder, file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


class _Fields(SimpleNamespace):
    """Replaces a class of tinker: holds its arguments by name."""


@contextmanager
def _importable() -> Iterator[None]:
    """Make the cookbook importable for functions with late imports."""
    names = ("training", "training.utils", "training.utils.rl")
    modules = {name: types.ModuleType(name) for name in names}
    modules |= {f"training.utils.rl.{name}": cookbook() for name in ("common", "tis")}
    with patch.dict("sys.modules", modules):
        yield


@cache
def trainer() -> Any:
    """Return the two static functions of rLLM's trainer that compute its metrics."""
    tree = ast.parse(Path(RLLM.folder, POLICY_TRAINER).read_text())
    return bare_class(tree, "FireworksPolicyTrainer", ("_compute_offpolicy_metrics",), space_of())


class _Inputs:
    """A batch as in the trainer: lists of one row each."""

    def __init__(self, batch: Batch, settings: Settings) -> None:
        def rows(values: np.ndarray) -> list[list[float]]:
            return [
                row[within].tolist() for row, within in zip(values, batch.response, strict=True)
            ]

        self.rollout, self.mask = rows(batch.rollout), rows(batch.mask.astype(float))
        self.old = self.rollout if settings.get("bypass_mode") else rows(batch.old)
        self.data = [
            _Fields(
                model_input=None,
                loss_fn_inputs={
                    "target_tokens": _Fields(data=[0] * len(mask)),
                    "loss_mask": _Fields(data=mask),
                },
            )
            for mask in self.mask
        ]
        self.starts = [1] * len(self.mask)  # prompts of one token
        level = settings.get("tis_mode")
        self.tis = None
        if level is not None:  # as `forward_backward_from_trajectory_groups` has it
            cap = settings.get("tis_cap", 2.0)
            self.tis = cookbook().TISConfig(level=level, cap=cap)


def on_fireworks(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Return the weights that multiply advantages, and rLLM's logged metrics."""
    rows = BATCHES[batch]
    inputs = _Inputs(rows, settings)
    with widened(dtype), _importable():
        data = cookbook().build_builtin_loss_datums(
            inputs.data,
            [1.0] * len(inputs.data),
            inputs.old,
            inputs.rollout,
            inputs.starts,
            tis_config=inputs.tis,
        )
        masks = [[int(one) for one in mask] for mask in inputs.mask]
        logged = trainer()._compute_offpolicy_metrics(inputs.old, inputs.rollout, masks)
    weights = np.zeros(rows.mask.shape)
    for row, within, datum in zip(weights, rows.response, data, strict=True):
        row[within] = datum.loss_fn_inputs["advantages"].data
    bypass = settings.get("bypass_mode")
    assert not bypass or (weights[rows.mask & np.isfinite(rows.rollout)] == 1.0).all()
    return corrected_case(batch, settings, dtype, None if bypass else weights, logged)


def updated(batch: str, settings: Settings) -> Updated:
    """Run the client's loss on one batch, divided as rLLM requests from the servers."""
    import torch

    rows = BATCHES[batch]
    inputs = _Inputs(rows, settings)
    how = settings.get("loss_agg_mode")
    counts = [max(1, int(sum(mask))) for mask in inputs.mask]
    advantages = rows.advantages.tolist()
    if how == "seq-mean-token-mean":
        advantages = [one / count for one, count in zip(advantages, counts, strict=True)]
    divisors = {None: 1.0, "token-mean": float(rows.mask.sum())}
    divisor = divisors.get(how, float(len(rows.mask)))
    eps = settings.get("eps_clip", 0.2)
    current = [
        torch.tensor(row[within]).requires_grad_()
        for row, within in zip(rows.current, rows.response, strict=True)
    ]
    with widened("float64"), _importable():
        loss_fn = cookbook().make_grpo_loss_fn(
            advantages,
            [[0.0] * len(mask) for mask in inputs.mask],
            inputs.starts,
            inputs.rollout,
            inputs.old,
            kl_beta=0.0,
            eps_clip=eps,
            eps_clip_high=settings.get("eps_clip_high"),
            tis_config=inputs.tis,
        )
        total, _ = loss_fn(inputs.data, current)
    loss = total / divisor
    loss.backward()
    gradient = np.zeros(rows.mask.shape)
    for row, within, values in zip(gradient, rows.response, current, strict=True):
        row[within] = 0.0 if values.grad is None else values.grad.numpy()
    return updated_case(batch, settings, loss, gradient, {})


def answers_of_verl() -> Answers:
    """Return all stored results of rLLM's verl backend."""
    return Answers(
        trainer="rllm-verl",
        source="package verl 0.8.0, verl/trainer/ppo/rollout_corr_helper.py: "
        "compute_rollout_correction_weights, compute_offpolicy_metrics, as rllm-org/rllm commit "
        f"{RLLM.commit}, rllm/trainer/verl/verl_backend.py calls them",
        corrections=[
            *(on_verl(batch, settings) for settings in ON_VERL for batch in BATCHES),
            on_verl("mild", {"tis_mode": "sequence", "tis_cap": "0.9_1.2"}),
            *(on_verl(batch, ON_VERL[2], "float32") for batch in ("mild", "rough")),
        ],
    )


def answers_of_fireworks() -> Answers:
    """Return all stored results of rLLM's Fireworks backend."""
    return Answers(
        trainer="rllm-fireworks",
        source=f"rllm-org/rllm commit {RLLM.commit}, {POLICY_TRAINER}: _compute_offpolicy_metrics; "
        f"fw-ai/cookbook commit {COOKBOOK.commit}, {RL}/losses.py: build_builtin_loss_datums; "
        f"{RL}/grpo.py: make_grpo_loss_fn",
        corrections=[
            *(on_fireworks(batch, settings) for settings in ON_FIREWORKS for batch in BATCHES),
            *(on_fireworks(batch, ON_FIREWORKS[2], "float32") for batch in ("mild", "rough")),
        ],
        losses=[
            updated(batch, settings) for settings in LOSSES for batch in ("mild", "rough", "beyond")
        ],
    )
