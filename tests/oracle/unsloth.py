"""Unsloth's loss out of two checkouts: one micro-batch that holds all rows.

The loss is a function of unsloth-zoo. What is logged of it is that of the last statements of
`compute_loss`, which unsloth puts in the place of TRL's.
"""

from __future__ import annotations

import ast
import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.oracle.checkouts import Checkout
from tests.oracle.published import arithmetic, execute, space_of
from tests.oracle.trl import Log, nan_functions, one_process
from tests.trainers.answers import Answers, Corrected, Settings, Updated
from tests.trainers.batches import BATCHES

UNSLOTH = Checkout("unsloth", "RCDIAG_UNSLOTH", "https://github.com/unslothai/unsloth", "015bdef0")
UNSLOTH_ZOO = Checkout(
    "unsloth-zoo", "RCDIAG_UNSLOTH_ZOO", "https://github.com/unslothai/unsloth-zoo", "ce232d6c"
)
FILE, LOGS = "unsloth_zoo/rl_replacements.py", "unsloth/models/rl_replacements.py"
# What the numbers of a missing log-prob are, its loss does not say.
NAMES = ("toy", "mild", "rough", "beyond")
LARGEST = tuple(
    f"sampling/{name}/max" for name in ("sampling_logp_difference", "importance_sampling_ratio")
)
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
BOUNDS: tuple[dict[str, float], ...] = (
    {},
    {"clip_min": 0.4, "clip_max": 2.5},
    {"clip_min": 0.8, "clip_max": 1.2},
)


def _on(mode: str, bounds: dict[str, float]) -> Settings:
    return {
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode,
        **{f"vllm_importance_sampling_{name}": bound for name, bound in bounds.items()},
    }


CORRECTIONS: list[Settings] = [{}, *(_on(mode, bounds) for mode in MODES for bounds in BOUNDS)]
LOSSES: list[Settings] = [
    *({"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo")),
    {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "grpo", "delta": 1.25, "epsilon_high": 0.28},
    {"loss_type": "bnpo", **_on("token_truncate", {"clip_min": 0.4, "clip_max": 2.5})},
    {"loss_type": "grpo", **_on("sequence_truncate", {})},
]


@cache
def code() -> Any:
    import torch

    space = {"torch": torch, "math": math}
    return UNSLOTH_ZOO.definitions(FILE, ("grpo_compute_loss",), space)["grpo_compute_loss"]


@cache
def logging() -> list[ast.stmt]:
    """The statements that log sampler and trainer, and then the clip."""
    found: ast.AST = ast.parse(Path(UNSLOTH.folder, LOGS).read_text())
    for name in ("grpo_trainer_compute_loss", "compute_loss"):
        (found,) = (
            node
            for node in ast.walk(found)
            if isinstance(node, ast.FunctionDef) and node.name == name
        )
    assert isinstance(found, ast.FunctionDef)
    (first,) = (
        place
        for place, statement in enumerate(found.body)
        if isinstance(statement, ast.If) and "delta is not None" in ast.unparse(statement.test)
    )
    return found.body[first:-1]


def _run(batch: str, settings: Settings, at_old: bool) -> tuple[Any, Any, Any, dict[str, float]]:
    """Return loss, current log-probs [rows, longest], weights and what is logged."""
    import torch

    rows = BATCHES[batch]
    on = bool(settings.get("vllm_importance_sampling_correction"))
    settings = {"loss_type": "bnpo", "epsilon_low": 0.2, "epsilon_high": 0.2, **settings}
    with arithmetic("float64") as wide:
        current = torch.tensor(rows.old if at_old else rows.current, dtype=wide)
        current.requires_grad_()
        mask = torch.tensor(rows.mask).to(wide)
        advantages = torch.tensor(rows.advantages, dtype=wide)
        loss, _, _, distance, weights, ratio, _ = code()(
            None,
            current,
            torch.tensor(rows.old, dtype=wide),
            torch.tensor(rows.rollout, dtype=wide) if on else None,
            torch.zeros(rows.mask.shape, dtype=torch.int64),
            mask,
            0.0,
            advantages,
            use_vllm=True,
            num_items_in_batch=mask.sum(),
            max_completion_length=512,
            **settings,
        )
        trainer = SimpleNamespace(
            use_vllm=True,
            vllm_importance_sampling_correction=on,
            _metrics=Log(),
            accelerator=one_process(),
            model=SimpleNamespace(device="cpu"),
            **{name: settings[name] for name in ("loss_type", "epsilon_low", "epsilon_high")},
        )
        space = space_of(
            self=trainer,
            delta=distance,
            flat_is_ratio=weights,
            completion_mask=mask,
            advantages=advantages,
            coef_1=ratio.detach(),
            mode="train",
            **vars(nan_functions()),
        )
        execute(logging(), space)
    return loss, current, weights, trainer._metrics.last


def corrected(batch: str, settings: Settings) -> Corrected:
    """The weights of a first update; of what is logged, that which padding does not change."""
    rows = BATCHES[batch]
    _, _, weights, logged = _run(batch, settings, at_old=True)
    return Corrected(
        batch=batch,
        settings=settings,
        weight_sum=float(weights.sum()) if len(weights) else None,
        kept_tokens=int(rows.mask.sum()),
        kept_sequences=int(rows.mask.any(axis=1).sum()),
        metrics={name: logged[name] for name in logged if name in LARGEST},
    )


def updated(batch: str, settings: Settings) -> Updated:
    """The loss and its gradient."""
    loss, current, _, logged = _run(batch, settings, at_old=False)
    loss.backward()
    return Updated(
        batch=batch,
        settings=settings,
        loss=loss.item(),
        metrics={name: logged[name] for name in logged if not name.startswith("sampling/")},
        gradient=[float(each) for each in current.grad.numpy()[BATCHES[batch].mask]],
    )


def answers() -> Answers:
    """All that is stored of Unsloth."""
    return Answers(
        trainer="unsloth",
        source=f"unslothai/unsloth-zoo commit {UNSLOTH_ZOO.commit}, {FILE}: grpo_compute_loss; "
        f"unslothai/unsloth commit {UNSLOTH.commit}, {LOGS}: the end of compute_loss",
        corrections=[corrected(batch, one) for one in CORRECTIONS for batch in NAMES],
        losses=[updated(batch, one) for one in LOSSES for batch in NAMES],
    )
