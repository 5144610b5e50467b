"""Flags of slime and miles choose what weighs the loss: a clamp, IcePop, or the MIS helper.

Sources: slime commit 624b824a8, slime/utils/arguments.py and
slime/backends/megatron_utils/loss.py (`vanilla_tis_function`, `icepop_function`,
`policy_loss_function`); miles commit 31f1ca96, miles/utils/arguments.py and
miles/backends/training_utils/loss_hub/corrections.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.correction import Correction, Weighting
from rcdiag.corrections.guard import Guard
from rcdiag.results import Finding
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.slime import mis
from rcdiag.trainers.trainer import Config, Refused, not_negative, switch

Function = Literal["none", "tis", "icepop", "helper"]
FLAGS: dict[str, Any] = {
    "use_tis": False,
    "tis_clip": 2.0,
    "tis_clip_low": 0.0,
    "custom_tis_function_path": None,
    "get_mismatch_metrics": False,
    "use_rollout_logprobs": False,
    "calculate_per_token_loss": False,
}
HELPER = {name: value for name, value in mis.SETTINGS.items() if name not in FLAGS}
# Flags of every run, by which a script of one of the two is known.
_OF_A_RUN = ("advantage_estimator", "rollout_batch_size", "rollout_num_gpus")
# The built-in functions take the exponential of a log-ratio of any size.
UNCLAMPED = Guard(bound=np.inf)


def logging(function: Function, per_token: bool) -> str:
    """Write what decides about the logged numbers, as `Correction.logging` has it."""
    return f"{function} per {'token' if per_token else 'sequence'}"


def is_script_of(document: Document, name: str, other: str) -> bool:
    """Tell whether a script is of one of two trainers with the same flags, by their names in it."""
    return document.format == "flags" and document.mentions(name) > document.mentions(other)


def is_run(document: Document) -> bool:
    """Tell whether a script has flags of a run, those of a correction left aside."""
    return document.format == "flags" and document.has(*_OF_A_RUN)


def logged_of(correction: Correction) -> tuple[str, bool]:
    """Return the function that made a correction, and whether means are over tokens."""
    function, _, unit = correction.logging.partition(" per ")
    return function, unit == "token"


class Functions(Struct, frozen=True):
    """The functions that a trainer may call, and how a user names the helper."""

    # The last two parts of a function's path -> the function.
    by_path: Mapping[str, Function]
    helper: str  # path of the MIS helper's function
    # Whether settings of the helper with use_tis off are those of a run that asks it for metrics.
    helper_is_asked: bool = False

    def of(self, config: Config) -> Function:
        """Return the function that the trainer calls; none without a switch."""
        path = config["custom_tis_function_path"]
        if self.helper_is_asked and path == self.helper:
            return "helper"
        if not (config["use_tis"] or config["get_mismatch_metrics"]):
            return "none"
        if path is None:
            return "tis"
        last_two = ".".join(str(path).replace(".py:", ".").replace("/", ".").split(".")[-2:])
        if last_two not in self.by_path:
            raise Refused(
                f"custom_tis_function_path: {path} is a function that rcdiag does not know",
                f"one of {', '.join(self.by_path)}",
            )
        return self.by_path[last_two]

    def read(self, config: Config) -> Correction:
        """Read what the chosen function makes of the ratio of old to rollout."""
        for name in ("use_tis", "get_mismatch_metrics", "use_rollout_logprobs"):
            switch(config, name)
        self._check(config)
        function = self.of(config)
        if function == "helper":
            correction = mis.read({name: config[name] for name in mis.SETTINGS})
        else:
            correction = _built_in(config, function)
        bypass = switch(config, "use_rollout_logprobs")
        return replace(
            correction,
            mode="bypass" if bypass else "decoupled",
            logging=logging(function, switch(config, "calculate_per_token_loss")),
        )

    def helper_defaults(self, settings: Config) -> list[Finding]:
        """Note that flags name the MIS helper and its settings stand in another file."""
        path = settings.get("custom_tis_function_path")
        if path is None or settings.keys() & HELPER.keys():
            return []
        if self.of({**FLAGS, **settings}) != "helper":
            return []
        return [
            Finding(
                slug="helper-settings-elsewhere",
                severity="note",
                message="the flags call the MIS helper, whose settings stand in the YAML of "
                "--custom-config-path: its defaults are computed",
                fix="give that YAML file as the trainer's config, if it changes a default",
                evidence={"custom_tis_function_path": str(path)},
            )
        ]

    def _check(self, config: Config) -> None:
        """Refuse what `slime_validate_args` and `miles_validate_args` stop on."""
        if config["use_rollout_logprobs"] and config["use_tis"]:
            raise Refused(
                "use_rollout_logprobs and use_tis are both on",
                "the PPO ratio corrects the mismatch already; turn one off",
            )
        if config["get_mismatch_metrics"] and config["custom_tis_function_path"] is None:
            raise Refused(
                "get_mismatch_metrics has no function to get them from",
                f"set custom_tis_function_path to {self.helper}",
            )
        function = self.of(config)
        if config["get_mismatch_metrics"] and not config["use_tis"] and function != "helper":
            raise Refused(
                f"get_mismatch_metrics: {function} weighs the loss without use_tis too",
                f"set custom_tis_function_path to {self.helper}, which asks for use_tis",
            )

    def ignored(self, config: Config) -> list[str]:
        """List settings that the chosen function does not read."""
        function = self.of(config)
        unread: tuple[str, ...]
        if function == "helper":
            unread, why = ("tis_clip", "tis_clip_low"), "the helper has bounds of its own"
            sentences = mis.ignored({name: config[name] for name in mis.SETTINGS})
        else:
            sentences = []
            unread, why = tuple(HELPER), "only the helper reads it: custom_tis_function_path"
            if function == "none":
                unread, why = ("tis_clip", "tis_clip_low", *HELPER), "use_tis is off"
        defaults = {**FLAGS, **HELPER}
        changed = [name for name in unread if config[name] != defaults[name]]
        return [*sentences, *(f"{name} has no effect: {why}" for name in changed)]


def _built_in(config: Config, function: Function) -> Correction:
    if function == "none":
        return Correction(guard=UNCLAMPED)
    low, high = not_negative(config, "tis_clip_low"), not_negative(config, "tis_clip")
    weighting = Weighting("token", high, low, "clip" if function == "tis" else "zero")
    return Correction(weighting=weighting, guard=UNCLAMPED)
