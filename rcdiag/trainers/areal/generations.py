"""AReaL as a trainer of rcdiag: its settings wherever they stand in its config, and its traps."""

from __future__ import annotations

from collections.abc import Mapping

from rcdiag.results import Finding
from rcdiag.trainers.areal.correction import BLOCK, OF_BLOCK, PRESETS, SETTINGS, read
from rcdiag.trainers.areal.emit import rejection_sampling
from rcdiag.trainers.areal.loss_in_config import loss_in
from rcdiag.trainers.areal.losses import UPDATE
from rcdiag.trainers.areal.metrics import metrics, quantities
from rcdiag.trainers.settings_document import MISSING, Document
from rcdiag.trainers.trainer import Claim, Config, ConfigFile, Refused, Trainer

_CAP, _MODE = "behave_imp_weight_cap", "behave_imp_weight_mode"
# The removed modes: level and action of the block that takes their place.
_MODES = {
    "token_mask": ("token", "mask"),
    "token_truncate": ("token", "clamp"),
    "sequence_mask": ("sequence", "mask"),
    "sequence_truncate": ("sequence", "clamp"),
}


def _places(name: str) -> tuple[str, ...]:
    """Return the dotted names of a setting, as in a whole config first."""
    return f"actor.{name}", name


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim a config whose actor has AReaL's names, or that part of it alone."""
    names = ("use_decoupled_loss", BLOCK, _CAP, "prox_logp_method", "m2_threshold")
    halves = all(document.has(name) for name in ("actor", "rollout", "gconfig"))
    if halves or document.has(*(f"actor.{name}" for name in names)):
        return Claim(0.97)
    return Claim(0.97) if any(name in config for name in names) else None


def _complete(config: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Say whether the block is there, and read the removed settings as the block."""
    settings = dict(config)
    written = settings.get(BLOCK, MISSING)
    if written is not MISSING:
        settings[BLOCK] = isinstance(written, Mapping) or written is True
    cap, mode = document.find(_CAP), document.find(_MODE)
    if cap is MISSING and mode is MISSING:
        return settings, []
    mode = "token_mask" if mode is MISSING else mode
    finding = Finding(
        slug="removed-setting",
        severity="warning",
        message=f"{_CAP} and {_MODE} were removed from AReaL, which stops on them; they are read "
        "as rejection_sampling",
        fix="write rejection_sampling in their place",
        evidence={"cap": None if cap is MISSING else cap, "mode": mode},
    )
    if mode == "disabled":
        return {**settings, BLOCK: False}, [finding]
    if not isinstance(mode, str) or mode not in _MODES:
        raise Refused(f"{_MODE}: {mode!r} is no mode", f"one of disabled, {', '.join(_MODES)}")
    level, action = _MODES[mode]
    upper = 5.0 if cap is MISSING else cap
    block = {f"{BLOCK}.level": level, f"{BLOCK}.action": action, f"{BLOCK}.upper": upper}
    return {**settings, BLOCK: True, **block}, [finding]


def ignored(config: Config) -> list[str]:
    """List settings that AReaL takes and does nothing with."""
    sentences = []
    if config[BLOCK] and not config["use_decoupled_loss"]:
        sentences.append(
            "rejection_sampling has no effect without use_decoupled_loss: all log-ratios are 0"
        )
    if config[BLOCK] and config[f"{BLOCK}.level"] == "token" and config[f"{BLOCK}.agg"] != "mean":
        sentences.append("agg has no effect at the level of tokens")
    if not config[BLOCK]:
        changed = [name for name in OF_BLOCK if config[name] != SETTINGS[name]]
        sentences += [f"{name} has no effect without rejection_sampling" for name in changed]
    if config["m2_threshold"] is not None and not config["use_decoupled_loss"]:
        sentences.append("m2_threshold has no effect without use_decoupled_loss")
    return sentences


def traps(config: Config) -> list[Finding]:
    """Report a decoupled loss without weights, and log-probs that are overwritten."""
    if config["use_decoupled_loss"] and not config[BLOCK]:
        return [
            Finding(
                slug="decoupled-without-weights",
                severity="warning",
                message="use_decoupled_loss without rejection_sampling: AReaL applies no weight "
                "to the sampler's tokens",
                fix="add rejection_sampling: {level: token, action: mask, upper: 5.0}",
            )
        ]
    if config["recompute_logprob"] and not config["use_decoupled_loss"]:
        return [
            Finding(
                slug="mismatch-overwritten",
                severity="warning",
                message="recompute_logprob without use_decoupled_loss: AReaL overwrites the "
                "sampler's log-probs, so that its own numbers show no mismatch",
                fix="set use_decoupled_loss: true with rejection_sampling",
            )
        ]
    return []


GENERATIONS = (
    Trainer(
        name="areal-1.0",
        family="areal",
        package="rcdiag.trainers.areal",
        newest=True,
        settings=SETTINGS,
        presets=PRESETS,
        read=read,
        ignored=ignored,
        traps=traps,
        quantities=quantities,
        metrics=metrics,
        update=UPDATE,
        config=ConfigFile(
            path=("actor",),
            places={name: _places(name) for name in SETTINGS},
            claim=_claim,
            loss=loss_in,
            complete=_complete,
            write=rejection_sampling,
            blocks=(BLOCK,),
            hydra=True,
        ),
    ),
)
