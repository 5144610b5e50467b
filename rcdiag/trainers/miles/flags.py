"""miles corrects by a function: its own clamp, its own IcePop, or the MIS helper of slime.

Sources: miles commit 31f1ca96 (2026-08-21), miles/utils/arguments.py,
miles/backends/training_utils/loss_hub/corrections.py, and
examples/infra_features/train_infer_mismatch_helper (`mis.py` and `mis.yaml`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rcdiag.corrections.correction import Correction, Guard, Weighting
from rcdiag.results import Finding
from rcdiag.trainers.document import Document
from rcdiag.trainers.miles.emit import custom_config
from rcdiag.trainers.miles.losses import UPDATE
from rcdiag.trainers.miles.metrics import Function, logging, metrics, quantities
from rcdiag.trainers.slime import mis
from rcdiag.trainers.slime.loss_in_config import loss_in
from rcdiag.trainers.trainer import (
    Claim,
    Config,
    ConfigFile,
    Refused,
    Trainer,
    not_negative,
    switch,
)

ICEPOP = "miles.backends.training_utils.loss_hub.corrections.icepop_function"
MIS = "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
# What each function is told by: the last two parts of its path.
_FUNCTIONS: dict[str, Function] = {
    "corrections.vanilla_tis_function": "tis",
    "corrections.icepop_function": "icepop",
    "mis.compute_mis_weights_with_cp": "helper",
    "mis.compute_mis_weights_fsdp": "helper",
}
_FLAGS: dict[str, Any] = {
    "use_tis": False,
    "tis_clip": 2.0,
    "tis_clip_low": 0.0,
    "custom_tis_function_path": None,
    "get_mismatch_metrics": False,
    "use_rollout_logprobs": False,
    "calculate_per_token_loss": False,
}
_HELPER = {name: value for name, value in mis.SETTINGS.items() if name not in _FLAGS}
_SETTINGS: dict[str, Any] = {**_FLAGS, **_HELPER}
UNCLAMPED = Guard(bound=np.inf)


def function_of(config: Config) -> Function:
    """Return the function that miles calls; none without a switch."""
    path = config["custom_tis_function_path"]
    if not (config["use_tis"] or config["get_mismatch_metrics"]):
        return "none"
    if path is None:
        return "tis"
    last_two = ".".join(str(path).replace(".py:", ".").replace("/", ".").split(".")[-2:])
    if last_two not in _FUNCTIONS:
        raise Refused(
            f"custom_tis_function_path: {path} is a function that rcdiag does not know",
            f"one of {', '.join(_FUNCTIONS)}",
        )
    return _FUNCTIONS[last_two]


def read(config: Config) -> Correction:
    """Read what the chosen function makes of the ratio of old to rollout."""
    for name in ("use_tis", "get_mismatch_metrics", "use_rollout_logprobs"):
        switch(config, name)
    _check(config)
    function = function_of(config)
    correction = _of_helper(config) if function == "helper" else _of_miles(config, function)
    bypass = switch(config, "use_rollout_logprobs")
    return replace(
        correction,
        mode="bypass" if bypass else "decoupled",
        logging=logging(function, switch(config, "calculate_per_token_loss")),
    )


def _of_helper(config: Config) -> Correction:
    return mis.read({name: config[name] for name in mis.SETTINGS})


def _of_miles(config: Config, function: Function) -> Correction:
    if function == "none":
        return Correction(guard=UNCLAMPED)
    low, high = not_negative(config, "tis_clip_low"), not_negative(config, "tis_clip")
    weighting = Weighting("token", high, low, "clip" if function == "tis" else "zero")
    return Correction(weighting=weighting, guard=UNCLAMPED)


def _check(config: Config) -> None:
    """Refuse what miles stops on: `miles_validate_args`."""
    if config["use_rollout_logprobs"] and config["use_tis"]:
        raise Refused(
            "use_rollout_logprobs and use_tis are both on",
            "the PPO ratio corrects the mismatch already; turn one off",
        )
    if config["get_mismatch_metrics"] and config["custom_tis_function_path"] is None:
        raise Refused(
            "get_mismatch_metrics has no function to get them from",
            f"set custom_tis_function_path to {MIS}",
        )
    function = function_of(config)
    if config["get_mismatch_metrics"] and not config["use_tis"] and function != "helper":
        raise Refused(
            f"get_mismatch_metrics: {function} weighs the loss without use_tis too",
            f"set custom_tis_function_path to {MIS}, which asks for use_tis",
        )


def ignored(config: Config) -> list[str]:
    """List settings that the chosen function does not read."""
    function = function_of(config)
    unread: tuple[str, ...]
    if function == "helper":
        unread, why = ("tis_clip", "tis_clip_low"), "the helper has bounds of its own"
        sentences = mis.ignored({name: config[name] for name in mis.SETTINGS})
    else:
        sentences = []
        unread, why = tuple(_HELPER), "only the helper reads it: custom_tis_function_path"
        if function == "none":
            unread, why = ("tis_clip", "tis_clip_low", *_HELPER), "use_tis is off"
    changed = [name for name in unread if config[name] != _SETTINGS[name]]
    return [*sentences, *(f"{name} has no effect: {why}" for name in changed)]


def _complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Read a file of the helper's keys alone as that of --custom-config-path."""
    if "custom_tis_function_path" in settings or not settings.keys() & _HELPER.keys():
        return settings, []
    note = Finding(
        slug="read-as-helper-yaml",
        severity="note",
        message="the file has keys of the MIS helper and no custom_tis_function_path: it is read "
        "as the YAML of --custom-config-path, with --use-tis and the helper as function",
        fix=f"say so in the file: custom_tis_function_path: {MIS}",
        evidence={"keys": sorted(settings.keys() & _HELPER.keys())},
    )
    return {"use_tis": True, "custom_tis_function_path": MIS, **settings}, [note]


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim a function of miles, and its own clamp by flags, which slime has as well."""
    path = config.get("custom_tis_function_path")
    if path is not None:
        own = "infra_features" in str(path) or str(path).startswith("miles.")
        return Claim(1.0) if own else None
    clamps = config.keys() & {"tis_clip", "tis_clip_low"}
    if clamps or (document.format == "flags" and config.get("use_tis")):
        return Claim(0.95, "slime has these flags too, and does the same with them")
    return Claim(0.6, "slime has this flag too") if "use_rollout_logprobs" in config else None


GENERATIONS = (
    Trainer(
        name="miles",
        family="miles",
        package="rcdiag.trainers.miles",
        newest=True,
        settings=_SETTINGS,
        presets={
            "default": {},
            "tis_by_flag": {"use_tis": True},
            "icepop_by_flag": {"use_tis": True, "custom_tis_function_path": ICEPOP},
            "mis_helper": {"use_tis": True, "custom_tis_function_path": MIS},
        },
        read=read,
        ignored=ignored,
        quantities=quantities,
        metrics=metrics,
        normaliser=mis.normaliser,
        update=UPDATE,
        config=ConfigFile(
            places={name: (name,) for name in _SETTINGS},
            claim=_claim,
            loss=loss_in,
            complete=_complete,
            write=custom_config,
            needs=("the file of --custom-config-path, which overrides flags of the same names",),
        ),
    ),
)
