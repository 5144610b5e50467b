"""TRL's own corrections and losses, out of its published wheel.

Of `_generate_and_score_completions` two statements run: that which makes the weights and that
which logs them. `_compute_loss` runs whole, with a model whose log-probs are those of the batch.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.oracle.cases import corrected_case, updated_case
from tests.oracle.published import (
    arithmetic,
    bare_class,
    branches,
    execute,
    functions,
    method,
    module,
    space_of,
)
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import BATCHES, Batch

VERSION = "1.16.0"
FILE = "trl/trainer/grpo_trainer.py"
CORRECTION: Settings = {
    "use_vllm": True,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
    "vllm_importance_sampling_cap": None,
    "off_policy_mask_threshold": None,
}
LOSS: Settings = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
    "max_completion_length": 512,
}
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def _of_mode(mode: str, **bounds: float | None) -> Settings:
    names = {name: f"vllm_importance_sampling_{name}" for name in bounds}
    return {
        "vllm_importance_sampling_mode": mode,
        **{names[name]: value for name, value in bounds.items()},
    }


CORRECTIONS: list[Settings] = [
    {},
    *(_of_mode(mode) for mode in MODES),
    *(_of_mode(mode, clip_min=0.4, clip_max=2.5) for mode in MODES),
    *(_of_mode(mode, clip_min=0.8, clip_max=1.2) for mode in MODES),
    *(_of_mode(mode, clip_min=0.5, clip_max=None) for mode in MODES),
    *(_of_mode(mode, clip_max=None) for mode in ("token_mask", "sequence_mask")),
    _of_mode("token_truncate", cap=1.5),
    _of_mode("token_mask", cap=1.5, clip_min=0.9),
    {"off_policy_mask_threshold": 0.02},
    _of_mode("token_truncate") | {"off_policy_mask_threshold": 0.5},
    {"vllm_importance_sampling_correction": False},
    {"use_vllm": False},
]
LOSSES: list[Settings] = [
    *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo")),
    *(
        {"loss_type": name, "importance_sampling_level": "sequence"}
        for name in ("grpo", "bnpo", "dapo", "luspo", "sapo")
    ),
    {"loss_type": "cispo", "importance_sampling_level": "sequence", "epsilon_high": 1.02},
    {"loss_type": "luspo"},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "cispo", "epsilon_high": 0.9},
    {"loss_type": "grpo", "delta": 1.25, "epsilon_high": 0.28},
    {"loss_type": "dr_grpo", "max_completion_length": 16},
    {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0},
    *(
        {"loss_type": "vespo", **_of_mode(mode, **bounds)}
        for mode in ("token_truncate", "token_mask")
        for bounds in ({}, {"clip_min": 0.8, "clip_max": 1.2})
    ),
    {"loss_type": "vespo", "vllm_importance_sampling_correction": False},
    {"loss_type": "vespo", **_of_mode("token_truncate"), "vespo_k_pos": 1.0, "vespo_k_neg": 2.0,
     "vespo_lambda_pos": 1.5, "vespo_lambda_neg": 1.0},
    {"loss_type": "dapo", "vllm_importance_sampling_correction": False},
    {"loss_type": "dapo", **_of_mode("token_truncate", clip_min=0.4, clip_max=2.5)},
    {"loss_type": "grpo", **_of_mode("sequence_truncate")},
    {"loss_type": "dapo", "off_policy_mask_threshold": 0.02},
    {"loss_type": "grpo", "off_policy_mask_threshold": 0.05, **_of_mode("token_mask")},
    {"loss_type": "dapo", "use_vllm": False, "off_policy_mask_threshold": 0.02},
]  # fmt: skip


class Refusal(Exception):
    """TRL stops on the settings."""


class Log(defaultdict[str, Any]):
    """What a trainer logs by mode and key: lists, as TRL has them."""

    def __init__(self) -> None:
        super().__init__(lambda: defaultdict(list))

    @property
    def last(self) -> dict[str, float]:
        return {key: float(values[-1]) for key, values in self["train"].items()}


def one_process() -> SimpleNamespace:
    """An accelerator of one process."""
    return SimpleNamespace(
        num_processes=1,
        gather=lambda values: values,
        gather_for_metrics=lambda values: values,
        reduce=lambda values, reduction: values,
    )


@cache
def _tree() -> ast.Module:
    return module("trl", VERSION, FILE)


@cache
def nan_functions() -> SimpleNamespace:
    tree = module("trl", VERSION, "trl/trainer/utils.py")
    return functions(tree, ("nanmin", "nanmax"), space_of())


def checked(settings: Settings) -> SimpleNamespace:
    """Settings as `GRPOConfig.__post_init__` leaves them."""
    config = SimpleNamespace(**CORRECTION | LOSS | settings)
    tree = module("trl", VERSION, "trl/trainer/grpo_config.py")
    checks = branches(method(tree, "GRPOConfig", "__post_init__"), "vllm_importance_sampling")
    assert len(checks) == 3
    space = space_of(self=config, warnings=SimpleNamespace(warn=lambda *_, **__: None))
    try:
        execute(checks, space | {"FutureWarning": FutureWarning})
    except ValueError as error:
        raise Refusal(str(error)) from error
    return config


def tensors(batch: Batch, dtype: Any) -> SimpleNamespace:
    """The batch as TRL holds it: masks are whole numbers, and only tools' tokens are masked."""
    import torch

    floats = ("old", "rollout", "current", "advantages")
    return SimpleNamespace(
        **{name: torch.tensor(getattr(batch, name), dtype=dtype) for name in floats},
        response=torch.tensor(batch.response.astype(np.int64)),
        mask=torch.tensor(batch.mask.astype(np.int64)),
    )


def _trainer(settings: Settings) -> Any:
    """GRPOTrainer with the methods of the loss alone, and settings as its __init__ has them."""
    config = checked(settings)
    names = ("_compute_loss", "get_off_policy_mask", "get_gamma_weights")
    space = space_of(**vars(nan_functions()))
    trainer = bare_class(_tree(), "GRPOTrainer", names, space)()
    vars(trainer).update(vars(config))
    trainer.args = config
    trainer.epsilon_low = config.epsilon
    trainer.epsilon_high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    trainer.beta, trainer.top_entropy_quantile = 0.0, 1.0
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = False
    trainer.current_gradient_accumulation_steps = config.steps_per_generation = 1
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator, trainer._metrics = one_process(), Log()
    return trainer


def weights_of(trainer: Any, given: SimpleNamespace) -> dict[str, Any]:
    """Names after the statement that makes the weights, then that which logs them."""
    function = method(_tree(), "GRPOTrainer", "_generate_and_score_completions")
    makes, logs, _ = [
        branch
        for branch in branches(function, "self.use_vllm and self.vllm_importance_sampling")
        if ast.unparse(branch.test) == "self.use_vllm and self.vllm_importance_sampling_correction"
    ]
    space = space_of(
        self=trainer,
        old_per_token_logps=given.old,
        sampling_per_token_logps=given.rollout,
        completion_mask=given.response,
        tool_mask=given.mask,
        device="cpu",
        mode="train",
        **vars(nan_functions()),
    )
    return execute([makes, logs], space)


def correction_case(
    trainer: Any, weights: Any, given: SimpleNamespace, batch: str, settings: Settings, dtype: str
) -> Corrected:
    """The correction of one generation batch, and the rows that OPSM lets into the loss."""
    rows_in_loss = None
    if trainer.off_policy_mask_threshold is not None:
        kept = trainer.get_off_policy_mask(
            given.advantages[:, None],
            given.old,
            given.rollout,
            given.mask,
            trainer.off_policy_mask_threshold,
        )
        rows_in_loss = [bool(row) for row in kept[:, 0]]
    case = corrected_case(batch, settings, dtype, weights, trainer._metrics.last)
    return replace(case, rows_in_loss=rows_in_loss)


def loss_case(
    trainer: Any, inputs: dict[str, Any], given: SimpleNamespace, batch: str, settings: Settings
) -> Updated:
    """The loss of one micro-batch that is the whole generation batch; `inputs` are of weights."""
    import torch

    current = given.current.requires_grad_()
    prompts = torch.ones(len(given.mask), 1, dtype=torch.int64)
    inputs = inputs | {
        "prompt_ids": torch.zeros_like(prompts),
        "prompt_mask": prompts,
        "completion_ids": torch.zeros_like(given.mask),
        "completion_mask": given.response,
        "tool_mask": given.mask,
        "advantages": given.advantages,
        "num_items_in_batch": given.mask.sum(),
        "old_per_token_logps": given.old,
    }
    if trainer.use_vllm:
        inputs["sampling_per_token_logps"] = given.rollout
    trainer._metrics = Log()
    entropies = torch.zeros_like(current)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (current, entropies, None)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    metrics = {key: value for key, value in trainer._metrics.last.items() if key != "entropy"}
    return updated_case(batch, settings, loss, current.grad, metrics)


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """The correction of one generation batch."""
    import torch

    with arithmetic(dtype) as wide, torch.no_grad():
        given, trainer = tensors(BATCHES[batch], wide), _trainer(settings)
        weights = weights_of(trainer, given).get("vllm_importance_sampling_ratio")
        return correction_case(trainer, weights, given, batch, settings, dtype)


def updated(batch: str, settings: Settings) -> Updated:
    """The loss of one micro-batch."""
    import torch

    with arithmetic("float64") as wide:
        given, trainer = tensors(BATCHES[batch], wide), _trainer(settings)
        with torch.no_grad():
            names = weights_of(trainer, given)
        own = "vllm_importance_sampling_ratio"
        inputs = {"importance_sampling_ratio": names[own]} if own in names else {}
        return loss_case(trainer, inputs, given, batch, settings)


def answers() -> Answers:
    """All that is stored of TRL."""
    return Answers(
        trainer="trl-1.16",
        source=f"trl {VERSION} on PyPI, {FILE}: two statements of _generate_and_score_completions, "
        "and _compute_loss with get_off_policy_mask and get_gamma_weights; "
        "trl/trainer/grpo_config.py: __post_init__",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in BATCHES),
            *(corrected(batch, {}, "float32") for batch in BATCHES),
        ],
        losses=[
            updated(batch, settings)
            for settings in LOSSES
            for batch in ("mild", "rough", "beyond", "missing")
        ],
    )
