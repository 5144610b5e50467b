"""SkyRL's own corrections and losses, out of its published wheel.

SkyRL takes exp in float32, whatever the log-probs are. In float64 its functions see a torch whose
float32 is float64, so that both can be compared to the last digit.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
import types
import typing
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.oracle.cases import corrected_case, updated_case
from tests.oracle.published import arithmetic, branches, execute, functions, method, module
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import WITHOUT_INFINITY as BATCHES
from tests.trainers.batches import Batch

VERSION = "0.4.0"
UTILS = "skyrl/backends/skyrl_train/utils"
NESTED = ("off_policy_correction", "sapo", "cispo", "dppo", "kl_cov")
LOSS_FUNCTIONS = {
    "regular": "ppo_policy_loss",
    "dual_clip": "ppo_policy_loss",
    "gspo": "gspo_policy_loss",
    "sapo": "sapo_policy_loss",
    "cispo": "compute_policy_loss_cispo",
    "rollout_is": "rollout_is_policy_loss",
    "dppo": "dppo_policy_loss",
    "kl_cov": "compute_policy_loss_kl_cov",
    "importance_sampling": "importance_sampling_loss",
}
OUTLIER = {"outlier_token_is_threshold_low": 0.5, "outlier_token_is_threshold_high": 1.8}
TOKEN_MASK = {"token_mask_is_threshold_low": 0.95, "token_mask_is_threshold_high": 1.05}
CORRECTIONS: list[Settings] = [
    {},
    dict(tis_ratio_type="token"),
    dict(tis_ratio_type="token", token_tis_ratio_clip_high=1.05),
    dict(tis_ratio_type="sequence"),
    dict(tis_ratio_type="sequence", sequence_tis_ratio_clip_high=0.9),
    dict(sequence_mask_metric="geometric"),
    dict(sequence_mask_metric="geometric", geo_mask_low=0.9, geo_mask_high=1.1),
    dict(sequence_mask_metric="product"),
    dict(sequence_mask_metric="product", product_mask_low=0.9, product_mask_high=1.02),
    dict(outlier_token_is_threshold_low=1e-4, outlier_token_is_threshold_high=100.0),
    dict(outlier_token_is_threshold_low=0.93),
    dict(outlier_token_is_threshold_high=1.08),
    dict(**TOKEN_MASK),
    dict(token_mask_is_threshold_low=0.5, token_mask_is_threshold_high=2.0),
    dict(token_mask_is_threshold_low=0.95),  # one bound alone does nothing
    dict(tis_ratio_type="token", sequence_mask_metric="geometric", geo_mask_low=0.98,
        geo_mask_high=1.02),
    dict(tis_ratio_type="sequence", sequence_mask_metric="product", **TOKEN_MASK),
    dict(tis_ratio_type="sequence", sequence_mask_metric="geometric", **OUTLIER, **TOKEN_MASK),
    dict(tis_ratio_type="token", token_tis_ratio_clip_high=1.02, **OUTLIER, **TOKEN_MASK),
    dict(sequence_mask_metric="product", product_mask_low=1.01, **OUTLIER, **TOKEN_MASK),
    {"use_tis": True, "tis_imp_ratio_cap": 1.03},
]  # fmt: skip
LOSSES: list[Settings] = [
    *(
        {"policy_loss_type": name, "loss_reduction": reduction}
        for name in LOSS_FUNCTIONS
        for reduction in ("token_mean", "sequence_mean")
    ),
    {"policy_loss_type": "regular", "loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": 64},
    {"policy_loss_type": "regular", "loss_reduction": "prompt_mean"},
    {"policy_loss_type": "kl_cov", "loss_reduction": "prompt_mean"},
    {"policy_loss_type": "regular", "loss_reduction": "prompt_mean", **dict(**TOKEN_MASK)},
    {"policy_loss_type": "kl_cov", "kl_cov_frac": 0.02, "ppo_kl_coef": 0.1},
    {"policy_loss_type": "kl_cov", **dict(**TOKEN_MASK)},
    {"policy_loss_type": "importance_sampling", **dict(**TOKEN_MASK)},
    {"policy_loss_type": "regular", "eps_clip_high": 0.28, **dict(tis_ratio_type="token")},
    {"policy_loss_type": "regular", **dict(sequence_mask_metric="geometric", **TOKEN_MASK)},
    {"policy_loss_type": "gspo", **dict(tis_ratio_type="sequence", **TOKEN_MASK)},
    {"policy_loss_type": "dual_clip", "clip_ratio_c": 1.1},
    {"policy_loss_type": "sapo", "tau_pos": 2.0, "tau_neg": 3.0},
    {"policy_loss_type": "cispo", "cispo_eps_clip_low": 0.1,
     "cispo_eps_clip_high": 0.2},
    {"policy_loss_type": "cispo", "cispo_anchor": "rollout"},
    {"policy_loss_type": "cispo", "cispo_anchor": "rollout",
     "cispo_eps_clip_low": 0.1, "cispo_eps_clip_high": 0.2},
    {"policy_loss_type": "rollout_is", "eps_clip_low": 0.1, "eps_clip_high": 0.3},
    {"policy_loss_type": "rollout_is", **dict(tis_ratio_type="token")},
    {"policy_loss_type": "dppo", "dppo_type": "binary_kl"},
    {"policy_loss_type": "dppo", "dppo_type": "binary_kl", "delta_low": 0.01,
     "delta_high": 0.02},
    {"policy_loss_type": "dppo", "delta_low": 0.05, "delta_high": 0.03},
    {"policy_loss_type": "dppo", **dict(sequence_mask_metric="product", **OUTLIER)},
]  # fmt: skip


class _Torch:
    """torch, with another type in the place of float32."""

    def __init__(self, dtype: str) -> None:
        import torch

        self.float32 = getattr(torch, dtype)
        self.torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)


def _tree(path: str) -> ast.Module:
    return module("skyrl", VERSION, path)


def _plain(tree: ast.Module, names: list[str]) -> ast.Module:
    """Return the functions without the decorators that register them in Ray."""
    wanted = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    for node in wanted:
        node.decorator_list = []
    return ast.Module(list(wanted), [])


@cache
def code(dtype: str) -> SimpleNamespace:
    """Return the functions for corrections, losses and reductions."""
    space: dict[str, Any] = {"torch": _Torch(dtype)}
    functions(_tree(f"{UTILS}/torch_utils.py"), ["masked_mean", "safe_exp_delta"], space)
    corrections = _tree(f"{UTILS}/off_policy_correction_utils.py")
    every = [node.name for node in corrections.body if isinstance(node, ast.FunctionDef)]
    functions(corrections, every, space)
    names = ["reduce_loss", "apply_loss_reduction_to_advantages_minibatch"]
    names += set(LOSS_FUNCTIONS.values())
    functions(_plain(_tree(f"{UTILS}/ppo_utils.py"), names), names, space)
    return SimpleNamespace(**space)


@cache
def settings_class() -> Any:
    """Return `AlgorithmConfig` with the classes of its nested settings."""
    shell = types.ModuleType("skyrl_config")
    sys.modules[shell.__name__] = shell  # a dataclass looks up its annotations there
    vars(shell).update(vars(typing))
    vars(shell).update(BaseConfig=object, dataclass=dataclasses.dataclass, field=dataclasses.field)
    tree = _tree("skyrl/train/config/config.py")
    nested = ("SAPO", "CISPO", "DPPO", "OffPolicyCorrection", "ClipCov", "KLCov", "KLCtrl")
    names = [f"{name}Config" for name in (*nested, "DynamicSampling", "Algorithm")]
    return functions(tree, names, vars(shell)).AlgorithmConfig


def algorithm(settings: Settings) -> Any:
    """Return the settings of `trainer.algorithm`; nested ones are given without their block."""
    config = settings_class()()
    blocks = [config, *(getattr(config, name) for name in NESTED)]
    for name, value in settings.items():
        (owner,) = (block for block in blocks if hasattr(block, name))
        setattr(owner, name, value)
    _validated(config)
    return config


def _validated(config: Any) -> None:
    """Run the trainer's own statements on `use_tis` and on the words of two settings."""
    tree = _tree("skyrl/train/utils/utils.py")
    (function,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "validate_cfg"
    )
    reads = "off_policy_correction = cfg.trainer.algorithm.off_policy_correction"
    first, last = "cfg.trainer.algorithm.use_tis", "uses_off_policy_correction"
    starts = [node.lineno for node in branches(function, first)]
    ends = [node.lineno for node in branches(function, last)]
    body = [node for node in function.body if starts[0] <= node.lineno <= ends[0]]
    assert reads in map(ast.unparse, body)
    sampling = SimpleNamespace(logprobs=1)
    cfg = SimpleNamespace(
        trainer=SimpleNamespace(algorithm=config),
        generator=SimpleNamespace(sampling_params=sampling),
    )
    execute(body, {"cfg": cfg, "logger": SimpleNamespace(warning=lambda text: None)})


@cache
def wire() -> SimpleNamespace:
    """Convert log-probs like the sampler's server: -9999 for missing or NaN values."""
    tree = _tree("skyrl/backends/skyrl_train/inference_servers/generate_wire.py")
    names = ("CLAMPED_LOGPROB",)
    constants = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names
    ]
    space = execute(constants, {"math": math})
    return functions(tree, ["build_logprobs_content"], space)


def handed_out(log_probs: np.ndarray) -> np.ndarray:
    """Return log-probs as the sampler's server returns them."""
    entries = [{0: SimpleNamespace(logprob=float(value))} for value in log_probs.ravel()]
    content, _ = wire().build_logprobs_content([0] * len(entries), entries)
    return np.array([each["logprob"] for each in content]).reshape(log_probs.shape)


def _tensors(batch: Batch, dtype: Any) -> SimpleNamespace:
    import torch

    batch = dataclasses.replace(batch, rollout=handed_out(batch.rollout))
    names = ("current", "old", "rollout", "mask", "token_advantages")
    return SimpleNamespace(
        **{name: torch.tensor(getattr(batch, name).astype(np.float64)).to(dtype) for name in names}
    )


def distances(given: SimpleNamespace) -> dict[str, float]:
    """Compute `policy/rollout_train_logprobs_abs_diff_*` by the trainer's own statement."""
    forward = method(_tree("skyrl/train/trainer.py"), "RayPPOTrainer", "fwd_logprobs_values_reward")
    (statement,) = branches(forward, "action_log_probs is not None")
    space: dict[str, Any] = {
        "training_input": {"rollout_logprobs": given.rollout, "loss_mask": given.mask},
        "action_log_probs": given.old,
        "self": SimpleNamespace(all_metrics={}),
    }
    return execute([statement], space)["self"].all_metrics


def corrected(batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Run the correction on one micro-batch with all rows."""
    with arithmetic(dtype) as wide:
        given = _tensors(BATCHES[batch], wide)
        weights, metrics, kept = code(dtype).compute_off_policy_correction(
            given.old, given.rollout, given.mask, algorithm(settings).off_policy_correction
        )
        logged = {f"policy/loss_metrics/{name}": value for name, value in metrics.items()}
        logged |= distances(given)
    return corrected_case(batch, settings, dtype, weights, logged, kept)


def one_prompt(rows: int) -> list[tuple[int, int]]:
    """Return all rows as responses to one prompt."""
    return [(0, rows)]


def updated(batch: str, settings: Settings) -> Updated:
    """Run the loss on one micro-batch with all rows of the minibatch."""
    rows = BATCHES[batch]
    with arithmetic("float64") as wide:
        given, config = _tensors(rows, wide), algorithm(settings)
        functions_of = code("float64")
        count, width = given.mask.shape
        advantages = functions_of.apply_loss_reduction_to_advantages_minibatch(
            given.token_advantages, given.mask, config.loss_reduction, count,
            config.max_seq_len or width, one_prompt(count),
        )  # fmt: skip
        current = given.current.requires_grad_()
        loss, metrics = getattr(functions_of, LOSS_FUNCTIONS[config.policy_loss_type])(
            current, given.old, advantages, config, given.mask, given.rollout
        )
        loss.backward()
    metrics = {f"policy/loss_metrics/{name}": value for name, value in metrics.items()}
    return updated_case(batch, settings, loss, current.grad, metrics)


def answers() -> Answers:
    """Return all stored results of SkyRL."""
    return Answers(
        trainer="skyrl-0.4",
        source=f"skyrl {VERSION} on PyPI, {UTILS}/off_policy_correction_utils.py: "
        f"compute_off_policy_correction; {UTILS}/ppo_utils.py: the policy losses and "
        "apply_loss_reduction_to_advantages_minibatch; skyrl/train/trainer.py: a statement of "
        "fwd_logprobs_values_reward; skyrl/train/utils/utils.py: statements of validate_cfg; "
        "skyrl/backends/skyrl_train/inference_servers/generate_wire.py: build_logprobs_content",
        corrections=[
            *(corrected(batch, settings) for settings in CORRECTIONS for batch in BATCHES),
            *(
                corrected(batch, settings, "float32")
                for settings in (CORRECTIONS[1], CORRECTIONS[17])
                for batch in BATCHES
            ),
        ],
        losses=[
            updated(batch, settings) for settings in LOSSES for batch in ("mild", "rough", "beyond")
        ],
    )
