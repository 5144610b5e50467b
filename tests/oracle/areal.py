"""AReaL's own loss of an actor's update with its corrections, out of its published wheel.

`grpo_loss_fn` runs whole, and the tracker of statistics that it writes to. A platform without an
accelerator stands for CUDA.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import sys
import threading
import types
import typing
import warnings
from collections import defaultdict
from enum import Enum, auto
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.oracle.cases import updated_case
from tests.oracle.checkouts import AREAL
from tests.oracle.published import arithmetic, functions, module
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import WITHOUT_INFINITY as BATCHES
from tests.trainers.batches import Batch

VERSION = "1.0.4"
NEWEST = "areal-20260822"
SCOPE = "ppo_actor/update/"
RS = "rejection_sampling."
# Logged metrics of the correction; the others concern the PPO ratio and entropy.
OF_CORRECTION = (
    "old_logp",
    "behave_",
    "rs_filtered_fraction",
    "n_valid_tokens",
    "unclipped_behave_tokens",
)
OF_LOSS = ("importance_weight", "approx_kl", "clip_ratio", "dual_clip_ratio", "actor_loss", "sapo")
DECOUPLED: Settings = {"use_decoupled_loss": True}


def _of(**own: Any) -> Settings:
    block = {RS + name: value for name, value in own.items()}
    return {**DECOUPLED, "rejection_sampling": True, **block}


NARROW = {"upper": 1.05, "lower": 0.95}
NATS = {"kl_k1": {"upper": 0.03, "lower": -0.02}, "kl_k2": {"upper": 0.002},
        "kl_k3": {"upper": 0.002, "lower": 0.0001}}  # fmt: skip
WIDE = {"ratio": {"upper": 1.5, "lower": 0.7}, "kl_k1": {"upper": 0.3, "lower": -0.3},
        "kl_k2": {"upper": 0.02}, "kl_k3": {"upper": 0.02}}  # fmt: skip
AGGREGATIONS = ("sum", "mean", "max")
CORRECTIONS: list[Settings] = [
    {},
    {"recompute_logprob": True},
    DECOUPLED,
    _of(level="token"),
    _of(level="token", upper=2.0, lower=0.5),
    _of(level="token", **NARROW),
    _of(level="token", action="clamp"),
    _of(level="token", action="clamp", upper=1.05),
    _of(level="token", action="clamp", **NARROW),
    *(_of(level="token", metric=metric, **NATS[metric]) for metric in NATS),
    *(
        _of(level="sequence", action=action, agg=agg, **NARROW)
        for action in ("mask", "clamp")
        for agg in AGGREGATIONS
    ),
    _of(level="sequence"),
    _of(level="sequence", action="clamp", upper=1.01),
    *(
        _of(level="sequence", metric=metric, agg=agg, **NATS[metric])
        for metric in NATS
        for agg in AGGREGATIONS
    ),
    *(
        _of(level="sequence", metric=metric, agg=agg, **WIDE[metric])
        for metric in WIDE
        for agg in AGGREGATIONS
    ),
    {**DECOUPLED, "m2_threshold": 0.0005},
    {**_of(level="token", **NARROW), "m2_threshold": 0.0005},
    {**_of(level="sequence", agg="sum", **NARROW), "m2_threshold": 0.1},
    {**_of(level="sequence", action="clamp", **NARROW), "m2_threshold": 1e-9},
    {"m2_threshold": 0.0005},
    {"rejection_sampling": True, RS + "upper": 1.05},
    {
        "recompute_logprob": True,
        "rejection_sampling": True,
        RS + "level": "sequence",
        RS + "action": "clamp",
    },
    # No check refuses this, and everything is dropped: 1 is below the bound.
    {"rejection_sampling": True, RS + "upper": 2.0, RS + "lower": 1.5},
]
LOSSES: list[Settings] = [
    {},
    {"recompute_logprob": True},
    DECOUPLED,
    {**DECOUPLED, "eps_clip": 0.1, "eps_clip_higher": 0.28, "c_clip": 1.1},
    _of(level="token", **NARROW),
    _of(level="token", action="clamp", **NARROW),
    {**_of(level="sequence", agg="sum", **NARROW), "c_clip": 3.0},
    {**DECOUPLED, "importance_sampling_level": "sequence"},
    {**_of(level="token", **NARROW), "importance_sampling_level": "sequence"},
    {**_of(level="token", **NARROW), "m2_threshold": 0.0005},
    {"importance_sampling_level": "sequence"},
    {"use_sapo_loss": True},
    {"use_sapo_loss": True, "recompute_logprob": True},
    {"use_sapo_loss": True, "sapo_tau_pos": 2.0, "sapo_tau_neg": 3.0},
    {"use_sapo_loss": True, "importance_sampling_level": "sequence"},
]
CISPO: list[Settings] = [
    {"use_cispo_loss": True, "eps_clip_higher": 0.28},
    {"use_cispo_loss": True, "eps_clip": 1.0, "eps_clip_higher": 4.0, "recompute_logprob": True},
    {**_of(level="token", **NARROW), "use_cispo_loss": True, "eps_clip_higher": 0.1},
    {**_of(level="sequence", action="clamp", **NARROW), "use_cispo_loss": True,
     "eps_clip_higher": 0.28},
]  # fmt: skip


@dataclasses.dataclass
class _Engine:
    """Replaces the settings of the training engine."""

    enable_delta_weight_update: bool = False

    def __post_init__(self) -> None:
        pass


def _tree(generation: str, path: str) -> ast.Module:
    if generation == NEWEST:
        return ast.parse((Path(AREAL.folder) / path).read_text())
    return module("areal", VERSION, path)


def _shell(name: str, **names: Any) -> dict[str, Any]:
    """A module namespace, in which a dataclass looks up its annotations."""
    shell = types.ModuleType(name)
    sys.modules[name] = shell
    vars(shell).update(names)
    return vars(shell)


@cache
def proximal_methods(generation: str) -> Any:
    """Return `ProxLogpMethod`."""
    tree = _tree(generation, "areal/utils/constants.py")
    return functions(tree, ["ProxLogpMethod"], {"Enum": Enum}).ProxLogpMethod


@cache
def settings_classes(generation: str) -> SimpleNamespace:
    """Return `RejectionSamplingConfig` and `PPOActorConfig`."""
    space = _shell("areal_config", **vars(typing))
    space |= {"dataclass": dataclasses.dataclass, "field": dataclasses.field}
    space |= {"TrainEngineConfig": _Engine, "NormConfig": object}
    space |= {"logger": SimpleNamespace(warning=lambda text: None)}
    space |= {"PROX_LOGP_METHOD_RECOMPUTE": "recompute", "PROX_LOGP_METHODS_ALL": []}
    if generation == NEWEST:  # its own check imports the methods
        _shell("areal.utils.constants", ProxLogpMethod=proximal_methods(generation))
        space |= {"DictConfig": dict, "warnings": warnings}
    tree = _tree(generation, "areal/api/cli_args.py")
    return functions(tree, ["RejectionSamplingConfig", "PPOActorConfig"], space)


def actor(generation: str, settings: Settings) -> Any:
    """Return the settings of `actor`; nested ones are dotted, `rejection_sampling.level`."""
    own = {name: value for name, value in settings.items() if not name.startswith(RS)}
    if own.pop("rejection_sampling", False):
        nested = {name[len(RS) :]: settings[name] for name in settings if name.startswith(RS)}
        own["rejection_sampling"] = settings_classes(generation).RejectionSamplingConfig(**nested)
    return settings_classes(generation).PPOActorConfig(**own)


@cache
def code(generation: str) -> dict[str, Any]:
    """Return `grpo_loss_fn` and the functions that it calls, without its staleness logging."""
    import torch

    space = _shell("areal_functional", torch=torch, functools=functools)
    space |= {"dataclass": dataclasses.dataclass}
    space |= {f"PROX_LOGP_METHOD_{name}": name.lower() for name in ("RECOMPUTE", "METRICS")}
    space |= {"PROX_LOGP_METHOD_LOGLINEAR": "loglinear"}
    if generation == NEWEST:
        space |= {"ProxLogpMethod": proximal_methods(generation)}
    functions(_tree(generation, "areal/utils/data.py"), ["KLEstimator"], space)
    functions(_tree(generation, "areal/trainer/ppo/stats.py"), ["infer_token_denominator"], space)
    names = ["_compute_sequence_level_ratio_and_advantages", "RejectionSamplingResult"]
    names += ["_check_bounds", "apply_rejection_sampling", "ppo_actor_loss_fn", "sapo_loss_fn"]
    if generation == NEWEST:
        names += ["compute_binary_kl_divergence", "cispo_loss_fn"]
    functions(_tree(generation, "areal/utils/functional/functional.py"), names, space)
    names = ["grpo_loss_fn", "_resolve_proximal_logp", "_apply_m2po_masking"]
    functions(
        _tree(generation, "areal/trainer/ppo/actor.py"), [*names, "_get_m2po_loss_mask"], space
    )
    space["_log_proximal_approximation_stats"] = lambda **given: None
    return space


@cache
def tracker_class(generation: str) -> Any:
    """Return `DistributedStatsTracker`, which reduces the logged metrics of an update."""
    import torch

    space = _shell("areal_stats", torch=torch, dist=None, defaultdict=defaultdict)
    space |= {"contextmanager": contextlib.contextmanager, "Lock": threading.Lock}
    space |= {"dataclass": dataclasses.dataclass, "MOE_AUX_LOSSES": {}}
    space |= {"Enum": Enum, "auto": auto}
    space |= {"current_platform": SimpleNamespace(is_initialized=lambda: False)}
    names = ["ReduceType", "DistributedStatsTracker"]
    if generation == NEWEST:
        names = ["ReduceType", "_StatMetadata", "DistributedStatsTracker"]
    tree = _tree(generation, "areal/utils/stats_tracker.py")
    return functions(tree, names, space).DistributedStatsTracker


@dataclasses.dataclass
class _Update:
    """One update of one minibatch."""

    loss: Any
    current: Any
    logged: dict[str, float]
    kept: Any
    weights: Any | None  # 0 where rejected


def _run(generation: str, rows: Batch, settings: Settings, dtype: str, at_old: bool) -> _Update:
    import torch

    config = actor(generation, settings)
    with (
        arithmetic(dtype) as wide,
        patch.object(torch, "float", wide),
        patch.object(torch, "float32", wide),
    ):
        given = {
            name: torch.tensor(getattr(rows, name).astype(np.float64)).to(wide)
            for name in ("old", "rollout", "current", "token_advantages")
        }
        mask = torch.tensor(rows.mask)
        # As after `_compute_advantages`: without decoupling one policy has two roles.
        proximal, behavior = given["old"], given["rollout"]
        if not config.use_decoupled_loss and config.recompute_logprob:
            behavior = proximal
        elif not config.use_decoupled_loss:
            proximal = behavior
        behavior = behavior * mask
        data = {"logprobs": behavior, "prox_logp": proximal, "loss_mask": mask}
        data["advantages"] = given["token_advantages"]
        current = given["old" if at_old else "current"].requires_grad_()
        seen: list[Any] = []
        tracker = tracker_class(generation)()
        names = ("rejection_sampling", "m2_threshold", "importance_sampling_level", "sapo_tau_pos")
        names += ("sapo_tau_neg", "prox_logp_method", "use_sapo_loss", "use_decoupled_loss")
        if generation == NEWEST:
            names += ("use_cispo_loss",)
        real = code(generation)["apply_rejection_sampling"]

        def recorded(**arguments: Any) -> Any:
            seen.append(real(**arguments))
            return seen[-1]

        with (
            patch.dict(code(generation), stats_tracker=tracker, apply_rejection_sampling=recorded),
            tracker.scope("ppo_actor"),
            tracker.scope("update"),
        ):
            loss = code(generation)["grpo_loss_fn"](
                current,
                torch.zeros_like(current),
                data,
                config.eps_clip,
                config.eps_clip_higher,
                config.c_clip,
                **{name: getattr(config, name) for name in names},
            )
        kept, weights = mask, None
        if config.m2_threshold is not None:
            kept = code(generation)["_apply_m2po_masking"](
                behavior, proximal, mask, config.m2_threshold
            )
        if seen:
            kept, weights = seen[0].loss_mask, seen[0].behave_imp_weight
        return _Update(loss, current, tracker.export(), kept, weights)


def _logged(update: _Update, names: tuple[str, ...]) -> dict[str, float]:
    """Return the keys with this prefix, without counts, which the trainer's logger drops."""
    return {
        key: float(value)
        for key, value in update.logged.items()
        if key.removeprefix(SCOPE).startswith(names) and not key.endswith("__count")
    }


def corrected(generation: str, batch: str, settings: Settings, dtype: str = "float64") -> Corrected:
    """Run the correction in a first update, in which current = old."""
    rows = BATCHES[batch]
    update = _run(generation, rows, settings, dtype, at_old=True)
    total = None if update.weights is None else float(update.weights.double().sum())
    return Corrected(
        batch=batch,
        settings=settings,
        arithmetic=dtype,
        weight_sum=total,
        kept_tokens=int(update.kept.sum()),
        kept_sequences=int(update.kept.any(dim=1).sum()),
        metrics=_logged(update, OF_CORRECTION),
    )


def updated(generation: str, batch: str, settings: Settings) -> Updated:
    """Run the loss on one minibatch with all rows."""
    update = _run(generation, BATCHES[batch], settings, "float64", at_old=False)
    update.loss.backward()
    metrics = _logged(update, OF_LOSS)
    return updated_case(batch, settings, update.loss, update.current.grad, metrics)


def answers(generation: str = "areal-1.0") -> Answers:
    """Return all stored results of a generation of AReaL."""
    newest = generation == NEWEST
    losses = [*LOSSES, *(CISPO if newest else ())]
    everywhere = [
        (batch, settings)
        for settings in CORRECTIONS
        for batch in BATCHES
        # AReaL refuses a NaN proximal log-prob.
        if batch != "missing"
        or settings.get("use_decoupled_loss")
        or "recompute_logprob" in settings
    ]
    source = f"AReaL commit {AREAL.commit}" if newest else f"areal {VERSION} on PyPI"
    return Answers(
        trainer=generation,
        source=f"{source}, areal/trainer/ppo/actor.py: grpo_loss_fn, "
        "_apply_m2po_masking; areal/utils/functional/functional.py: apply_rejection_sampling, "
        "ppo_actor_loss_fn, sapo_loss_fn; areal/utils/stats_tracker.py; areal/api/cli_args.py",
        corrections=[
            *(corrected(generation, batch, settings) for batch, settings in everywhere),
            *(
                corrected(generation, batch, settings, "float32")
                for settings in (CORRECTIONS[3], CORRECTIONS[8], CORRECTIONS[13])
                for batch in BATCHES
            ),
        ],
        losses=[
            updated(generation, batch, settings)
            for settings in losses
            for batch in ("mild", "rough", "beyond")
        ],
    )
