"""ms-swift's own corrections and losses, out of its published wheel.

`_compute_loss_and_metrics` of the Hugging Face trainer runs whole, with a model whose log-probs
are those of the batch; the Megatron trainer has the same formulas.
"""

from __future__ import annotations

import ast
from functools import cache
from types import SimpleNamespace
from typing import Any

from tests.oracle.cases import corrected_case, updated_case
from tests.oracle.published import arithmetic, bare_class, execute, module, space_of
from tests.oracle.trl import MODES, nan_functions, one_process
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import BATCHES

VERSION = "4.6.0"
FILE = "swift/rlhf_trainers/grpo_trainer.py"
METHODS = (
    "_compute_loss_and_metrics",
    "_get_rollout_is_correction",
    "_compute_sequence_level_ratios",
    "_apply_rollout_importance_sampling",
    "_compute_off_policy_sequence_mask",
    "_compute_rollout_offpolicy_metrics",
    "_compute_is_correction_metrics",
    "_undo_gradient_accumulation_scaling",
    "_compute_fipo_influence",
)
CORRECTION: Settings = {
    "rollout_importance_sampling_mode": None,
    "rollout_importance_sampling_threshold": 2.0,
    "log_rollout_offpolicy_metrics": False,
    "off_policy_sequence_mask_delta": None,
}
LOSS: Settings = {
    "loss_type": "grpo",
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "max_completion_length": 512,
    "fipo_decay_rate": 32.0,
    "fipo_clip_range": 0.2,
    "fipo_clip_high_only": True,
    "fipo_safety_threshold": 4.0,
    "real_tau": 0.5,
}
THRESHOLDS = (1.05, 1.3, 4.0)
CORRECTIONS: list[Settings] = [
    {},
    {"log_rollout_offpolicy_metrics": True},
    *({"rollout_importance_sampling_mode": mode} for mode in MODES),
    *(
        {
            "rollout_importance_sampling_mode": mode,
            "rollout_importance_sampling_threshold": threshold,
        }
        for mode in MODES
        for threshold in THRESHOLDS
    ),
    {"off_policy_sequence_mask_delta": 0.02},
    {"off_policy_sequence_mask_delta": 0.02, "log_rollout_offpolicy_metrics": True},
    {"off_policy_sequence_mask_delta": 0.5, "rollout_importance_sampling_mode": "token_truncate"},
    {"off_policy_sequence_mask_delta": 0.0, "rollout_importance_sampling_mode": "sequence_mask"},
]
LOSSES: list[Settings] = [
    *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo")),
    *(
        {"loss_type": name, "importance_sampling_level": level}
        for name in ("grpo", "dapo", "sapo")
        for level in ("sequence", "sequence_token")
    ),
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "cispo", "epsilon_high": 0.9, "importance_sampling_level": "sequence"},
    {"loss_type": "grpo", "delta": 1.25, "epsilon_high": 0.28},
    {"loss_type": "dr_grpo", "max_completion_length": 16},
    {"loss_type": "sapo", "tau_pos": 2.0, "tau_neg": 3.0},
    {"loss_type": "grpo", "rollout_importance_sampling_mode": "token_mask"},
    {"loss_type": "dapo", "rollout_importance_sampling_mode": "sequence_truncate"},
    *(
        {"loss_type": name, "off_policy_sequence_mask_delta": 0.02}
        for name in ("grpo", "bnpo", "dapo", "dr_grpo")
    ),
    {
        "loss_type": "bnpo",
        "off_policy_sequence_mask_delta": 0.02,
        "rollout_importance_sampling_mode": "token_truncate",
    },
    {"loss_type": "fipo"},
    {"loss_type": "fipo", "importance_sampling_level": "sequence", "delta": 1.25},
    {"loss_type": "fipo", "fipo_decay_rate": 2.0, "fipo_clip_high_only": False},
    {"loss_type": "fipo", "fipo_clip_range": 0.0, "fipo_safety_threshold": 1.1},
    {
        "loss_type": "fipo",
        "fipo_safety_threshold": None,
        "off_policy_sequence_mask_delta": 0.02,
        "rollout_importance_sampling_mode": "token_mask",
    },
    *(
        {"loss_type": "real", **settings}
        for settings in (
            {},
            {"real_tau": 2.0},
            {"off_policy_sequence_mask_delta": 0.02},
            {"rollout_importance_sampling_mode": "token_mask"},
        )
    ),
]
# real counts an empty row as a bad answer; rcdiag does not know to which prompt.
LOSS_BATCHES = {"real": ("toy", "rough")}


@cache
def _tree() -> ast.Module:
    return module("ms-swift", VERSION, FILE)


def _constants() -> list[ast.stmt]:
    return [
        node
        for node in _tree().body
        if isinstance(node, ast.Assign) and "WINDOW_NORMALIZED" in ast.unparse(node.targets[0])
    ]


def _trainer(settings: Settings, num_generations: int) -> Any:
    """Return GRPOTrainer with only these methods, set up like `_prepare_algorithm_params`."""
    config = SimpleNamespace(**CORRECTION | LOSS | settings, gradient_accumulation_steps=1)
    space = space_of(
        **vars(nan_functions()),
        gather=lambda values: values,
        gather_object=lambda values: values,
        GRPOBatch=object,
    )
    execute(_constants(), space)
    trainer = bare_class(_tree(), "GRPOTrainer", METHODS, space)()
    vars(trainer).update(vars(config))
    trainer.args = config
    trainer.epsilon_low = config.epsilon
    trainer.epsilon_high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    trainer.fipo_gamma = 2 ** (-1 / config.fipo_decay_rate)
    trainer.num_generations = num_generations
    trainer.beta, trainer.sdar_loss_coef = 0.0, 0.0
    trainer.compute_entropy = trainer.overlong_filter = trainer.kl_in_reward = False
    trainer.disable_rollout_importance_sampling = trainer._has_teacher = False
    trainer.chord_sft_iterator = trainer.compute_loss_func = None
    trainer.model_accepts_loss_kwargs = False
    trainer.current_gradient_accumulation_steps = 1
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = one_process()
    return trainer


def _run(trainer: Any, batch: str, dtype: Any, moved: bool) -> tuple[Any, Any, dict[str, Any], Any]:
    """Return loss, differentiable log-probs, logged metrics, and weights."""
    import torch

    rows = BATCHES[batch]
    old, rollout, current, advantages = (
        torch.tensor(each, dtype=dtype)
        for each in (rows.old, rows.rollout, rows.current, rows.token_advantages)
    )
    mask = torch.tensor(rows.mask)
    current = (current if moved else old.clone()).requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (current, None)
    given = SimpleNamespace(
        completion_mask=mask,
        truncated_mask=torch.zeros(len(mask), dtype=torch.bool),
        advantages=advantages,
        old_per_token_logps=old,
        rollout_per_token_logps=rollout,
        num_items_in_batch=mask.sum(),
        teacher_per_token_logps=None,
    )
    loss, metrics = trainer._compute_loss_and_metrics(trainer.model, {}, given)
    _, weights = trainer._get_rollout_is_correction(old, rollout, mask)
    return loss, current, metrics, weights


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Run the correction on one micro-batch with the whole batch, at current = old."""
    rows = BATCHES[batch]
    with arithmetic(dtype) as wide:
        trainer = _trainer(settings, len(rows.mask))
        _, _, logged, weights = _run(trainer, batch, wide, moved=False)
    metrics = logged.get("rollout_correction", {})
    metrics = {f"rollout_correction/{name}": value for name, value in metrics.items()}
    return corrected_case(batch, settings, dtype, weights, metrics, logged["completion_mask"])


def updated(batch: str, settings: Settings) -> Updated:
    """Run the loss on one micro-batch that is the whole accumulation window."""
    rows = BATCHES[batch]
    with arithmetic("float64") as wide:
        trainer = _trainer(settings, len(rows.mask))
        loss, current, logged, _ = _run(trainer, batch, wide, moved=True)
        loss.backward()
    clipping = logged.get("clipping", {})
    of_fipo = {f"fipo/{name}": value for name, value in logged.get("fipo", {}).items()}
    short = {"low_clip": "clip_ratio/low", "high_clip": "clip_ratio/high"}
    names = {name: name if name == "cispo_clip_ratio" else _key(name, short) for name in clipping}
    metrics = {names[name]: value for name, value in clipping.items()} | of_fipo
    return updated_case(batch, settings, loss, current.grad, metrics)


def _key(name: str, short: dict[str, str]) -> str:
    """Return the key under which `_update_metrics` logs a clipping metric."""
    side, _, reduction = name.rpartition("_")
    return f"{short.get(side, 'clip_ratio/region')}_{reduction}"


def answers() -> Answers:
    """Return all stored results of ms-swift."""
    batches = [batch for batch in BATCHES if batch not in ("missing", "infinite")]
    return Answers(
        trainer="ms-swift-4.6",
        source=f"ms-swift {VERSION} on PyPI, {FILE}: _compute_loss_and_metrics of GRPOTrainer, and "
        "what it calls",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in batches),
            *(
                corrected(batch, settings, "float32")
                for settings in CORRECTIONS[1:6]
                for batch in batches
            ),
        ],
        losses=[
            updated(batch, settings)
            for settings in LOSSES
            for batch in LOSS_BATCHES.get(settings["loss_type"], ("mild", "rough", "beyond"))
        ],
    )
