"""prime-rl's loss has the mismatch in its ratio, and drops tokens beyond a trust region.

Two policies only: the log-ratio is that of the policy being trained to the sampler. Sources:
prime-rl commit 559b4477 (2026-08-21), src/prime_rl/trainer/rl/loss.py and
packages/prime-rl-configs/src/prime_rl/configs/trainer.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.corrections.guard import Guard
from rcdiag.trainers.prime_rl.emit import loss_table
from rcdiag.trainers.prime_rl.loss_in_config import loss_in
from rcdiag.trainers.prime_rl.losses import UPDATE
from rcdiag.trainers.prime_rl.metrics import metrics, quantities
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.trainer import (
    Claim,
    Config,
    ConfigFile,
    Trainer,
    choice,
    not_negative,
)

_NUMBERS = ("dppo_mask_low", "dppo_mask_high", "ipo_threshold", "adv_tau", "kl_tau")
_SETTINGS: dict[str, Any] = {
    "type": "default",
    "dppo_mask_low": 0.2,
    "dppo_mask_high": 0.2,
    "ipo_threshold": 0.1,
    "adv_tau": 1.0,
    "kl_tau": 1e-3,
}
RAW = Weighting("token", np.inf, 0.0, "clip")  # the ratio, without a bound
UNCLAMPED = Guard(bound=np.inf)


def read(config: Config) -> Correction:
    """Read the ratio as weight, and which tokens lose it; these keep the quadratic term."""
    kind = choice(config, "type", ("default", "ipo"))
    low, high, threshold, *_ = (not_negative(config, name) for name in _NUMBERS)
    if kind == "ipo":
        dropped: tuple[Rejection, ...] = (Rejection("token_tv", threshold),)
    else:
        dropped = (Rejection("token_rise", high), Rejection("token_fall", low))
    return Correction(
        weighting=RAW,
        rejections=dropped,
        zeroing=dropped,
        mode="bypass",
        loss="ipo" if kind == "ipo" else "dppo_tv",
        guard=UNCLAMPED,
    )


def ignored(config: Config) -> list[str]:
    """List settings of the loss that is not chosen."""
    others = {"ipo": ("dppo_mask_low", "dppo_mask_high"), "default": ("ipo_threshold",)}
    kind = config["type"]
    return [
        f"{name} has no effect: it is of another loss than type = {kind}"
        for name in others.get(kind, ())
        if config[name] != _SETTINGS[name]
    ]


_OWN = ("dppo_mask_low", "dppo_mask_high", "ipo_threshold")


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim names that no other trainer has, and the tables of a whole file."""
    if any(name in config for name in _OWN):
        return Claim(1.0)
    if document.format == "toml" and config.get("type") in ("default", "ipo", "custom"):
        return Claim(0.9)
    tables = ("trainer", "orchestrator", "inference")
    whole = document.format == "toml" and sum(name in document.tree for name in tables) > 1
    return Claim(0.7) if whole else None


GENERATIONS = (
    Trainer(
        name="prime-rl",
        family="prime-rl",
        package="rcdiag.trainers.prime_rl",
        newest=True,
        settings=_SETTINGS,
        presets={"default": {}, "ipo": {"type": "ipo"}},
        read=read,
        rejects_by=("token_rise", "token_fall", "token_tv"),
        ignored=ignored,
        quantities=quantities,
        metrics=metrics,
        update=UPDATE,
        config=ConfigFile(
            path=("trainer", "loss"),
            # A trainer's own file has the table `loss` at its top.
            places={name: (f"trainer.loss.{name}", f"loss.{name}") for name in _SETTINGS},
            form="toml",
            claim=_claim,
            loss=loss_in,
            write=loss_table,
            needs=("the file of `rl @ FILE`; a file for the trainer alone has [loss]",),
        ),
    ),
)
