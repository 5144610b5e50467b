"""slime's correction, a function chosen by its flags: its clamp, its IcePop, or the MIS helper.

miles has the same flags, and a copy of the helper. Sources: slime commit 624b824a8 (2026-08-21),
slime/utils/arguments.py (`slime_validate_args`), slime/backends/megatron_utils/loss.py
(`vanilla_tis_function`, `icepop_function`, `policy_loss_function`) and
examples/train_infer_mismatch_helper (`mis.py` and `mis.yaml`); miles commit 31f1ca96,
miles/utils/arguments.py and miles/backends/training_utils/loss_hub/corrections.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from rcdiag.corrections.arithmetic import Guard
from rcdiag.corrections.correction import Correction, Rejection, Weighting
from rcdiag.results import Finding
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.settings_table import Config, Refused, Settings, read_tables
from rcdiag.trainers.writing import Facts

Function = Literal["none", "tis", "icepop", "helper"]
# Flags besides use_tis, which is also a key of the helper's YAML.
FLAGS = (
    *("tis_clip", "tis_clip_low", "custom_tis_function_path", "get_mismatch_metrics"),
    *("use_rollout_logprobs", "calculate_per_token_loss"),
)
HELPER = (
    *("use_rs", "tis_level", "rs_level", "tis_mode", "tis_lower_bound", "tis_upper_bound"),
    *("rs_lower_bound", "rs_upper_bound", "rs_veto_threshold", "tis_batch_normalize"),
)
# The built-in functions take exp of log-ratios without a clamp.
UNCLAMPED = Guard(bound=np.inf)


def is_run(document: Document) -> bool:
    """Tell whether a file is a script with flags of a run, even without flags of the correction."""
    flags = ("advantage_estimator", "rollout_batch_size", "rollout_num_gpus")
    return document.format == "flags" and document.has(*flags)


def logging(function: Function, per_token: bool) -> str:
    """Return what determines the logged numbers, as text for `Correction.logging`."""
    return f"{function} per {'token' if per_token else 'sequence'}"


def logged_of(correction: Correction) -> tuple[str, bool]:
    """Return the function that made a correction, and whether means are over tokens."""
    function, _, unit = correction.logging.partition(" per ")
    return function, unit == "token"


class Functions(Struct, frozen=True):
    """The functions that a trainer may call, and the path of the helper."""

    # The last two parts of a function's path -> the function.
    by_path: Mapping[str, Function]
    helper: str  # path of the MIS helper's function
    # Whether a file with the helper's path but use_tis off still means the helper: slime's users
    # set use_tis and the path on the command line, and rcdiag uses the path as a default.
    helper_is_asked: bool = False

    def of(self, config: Mapping[str, Any]) -> Function:
        """Return the function that the trainer calls; "none" if no switch is on."""
        path = config.get("custom_tis_function_path")
        if self.helper_is_asked and path == self.helper:
            return "helper"
        if not (config.get("use_tis") or config.get("get_mismatch_metrics")):
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

    def read(self, settings: Settings) -> Correction:
        """Return the correction that the chosen function applies to the ratio of old to rollout."""
        on, asked, bypass = (
            settings[name] for name in ("use_tis", "get_mismatch_metrics", "use_rollout_logprobs")
        )
        self._check(settings, on=on, asked=asked, bypass=bypass)
        function = self.of(settings)
        if function == "helper":
            correction = mis(settings)
        elif function == "none":
            correction = Correction(guard=UNCLAMPED)
        else:
            low, high = settings["tis_clip_low"], settings["tis_clip"]
            weighting = Weighting("token", high, low, "clip" if function == "tis" else "zero")
            correction = Correction(weighting=weighting, guard=UNCLAMPED)
        return replace(
            correction,
            mode="bypass" if bypass else "decoupled",
            logging=logging(function, settings["calculate_per_token_loss"]),
        )

    def _check(self, settings: Settings, *, on: bool, asked: bool, bypass: bool) -> None:
        """Refuse settings on which `slime_validate_args` and `miles_validate_args` stop."""
        if bypass and on:
            raise Refused(
                "use_rollout_logprobs and use_tis are both on",
                "the PPO ratio corrects the mismatch already; turn one off",
            )
        if asked and settings["custom_tis_function_path"] is None:
            raise Refused(
                "get_mismatch_metrics has no function to compute them",
                f"set custom_tis_function_path to {self.helper}",
            )
        function = self.of(settings)
        if asked and not on and function != "helper":
            raise Refused(
                f"get_mismatch_metrics: {function} applies weights even without use_tis",
                f"set custom_tis_function_path to {self.helper}, which asks for use_tis",
            )

    def ignored(self, config: Config) -> list[str]:
        """Report settings that the chosen function does not read."""
        function = self.of(config)
        unread: tuple[str, ...] = HELPER
        why = "only the helper reads it: custom_tis_function_path"
        sentences = []
        if function == "none":
            unread, why = ("tis_clip", "tis_clip_low", *HELPER), "use_tis is off"
        elif function == "helper":
            unread, why = ("tis_clip", "tis_clip_low"), "the helper has bounds of its own"
            if config["use_rs"] and not config["use_tis"]:
                sentences.append(
                    "use_rs has no effect without use_tis: slime returns before it rejects anything"
                )
            elif config["use_tis"] and not config["use_rs"]:
                of_rs = ("rs_level", "rs_lower_bound", "rs_upper_bound", "rs_veto_threshold")
                changed = _changed(config, of_rs)
                sentences += [f"{name} has no effect without use_rs" for name in changed]
                if config["tis_mode"] == "truncate" and _changed(config, ("tis_lower_bound",)):
                    sentences.append(
                        "tis_lower_bound has no effect in truncate mode without use_rs"
                    )
        return sentences + [f"{name} has no effect: {why}" for name in _changed(config, unread)]

    def helper_defaults(self, settings: Config) -> list[Finding]:
        """Note that flags name the MIS helper although its settings are in another file."""
        path = settings.get("custom_tis_function_path")
        if path is None or settings.keys() & set(HELPER) or self.of(settings) != "helper":
            return []
        return [
            Finding(
                slug="helper-settings-elsewhere",
                severity="note",
                message="the flags call the MIS helper, but its settings are in the YAML of "
                "--custom-config-path, which was not given: computed with the helper's defaults",
                fix="give that YAML file as the trainer's config, if it changes a default",
                evidence={"custom_tis_function_path": str(path)},
            )
        ]


def _changed(config: Config, names: tuple[str, ...]) -> list[str]:
    """Return the settings that differ from slime's defaults, which miles has too."""
    defaults = read_tables("rcdiag.trainers.slime")["slime"].defaults()
    return [name for name in names if config[name] != defaults[name]]


def mis(settings: Settings) -> Correction:
    """Return the MIS helper's correction: without `use_tis` it does nothing, not even reject."""
    if not settings["use_tis"]:
        return Correction(weights_applied=False)
    level, mode = settings["tis_level"], settings["tis_mode"]
    if settings["tis_batch_normalize"] and level == "geometric":
        raise Refused(
            "tis_batch_normalize: slime stops with geometric weights (unsupported tis_level)",
            "turn it off, or take another level",
        )
    upper, lower = settings["tis_upper_bound"], settings["tis_lower_bound"]
    lower = 1.0 / upper if lower is None else lower
    if mode != "truncate":
        _ordered("tis", lower, upper)
    rejections = [Rejection(level, upper, lower)] if mode == "mask" else []
    veto = None
    if settings["use_rs"]:
        rs_level = settings["rs_level"]
        low, high = settings["rs_lower_bound"], settings["rs_upper_bound"]
        low, high = lower if low is None else low, upper if high is None else high
        _ordered("rs", low, high)
        rejections.append(Rejection(rs_level, high, low))
        veto = settings["rs_veto_threshold"]
    return Correction(
        weighting=Weighting(level, upper, lower, mode),
        rejections=tuple(rejections),
        veto=veto,
        batch_normalize=bool(settings["tis_batch_normalize"]),
    )


def _ordered(which: str, lower: float, upper: float) -> None:
    """Refuse bounds in the wrong order, as the helper does wherever it clips or rejects."""
    if not lower < upper:
        raise Refused(
            f"{which}_lower_bound: {lower:g} is not below the upper bound {upper:g}",
            "rs bounds that are null are those of tis",
        )


def facts(correction: Correction, facts: Facts, *, clamps: bool = False) -> Facts:
    """Say which function makes a correction, and the helper's settings for it.

    Truncation of token weights is possible by the clamp and by the helper; `clamps` prefers the
    clamp.
    """
    if facts["mode"] == "bypass":
        return {"function": "bypass"}
    none_left = not (correction.rejections or correction.zeroing) and facts["veto"] is None
    plain = facts["applied"] and not facts["normalized"] and facts["weights"] == "token"
    masks = correction.weighting is not None and correction.weighting.outside == "mask"
    if none_left and (facts["weights"] is None or (plain and not masks)):
        if facts["outside"] == "zero":
            return {"function": "icepop"}
        if clamps:
            return {"function": "tis"}
    level, rejections = facts["weights"], facts["rejections"]
    if level is None:
        return {"function": "helper"}
    own: Facts = {"function": "helper", "tis_mode": "truncate"}
    own |= {"tis.lower": facts["lower"], "tis.upper": facts["upper"]}
    if facts["outside"] == "bare" and level in rejections:
        # mode mask rejects outside of the bounds, and leaves the weights unchanged
        own["tis_mode"] = "mask"
        own |= {f"tis.{side}": facts[f"rejections.{level}.{side}"] for side in ("lower", "upper")}
        rejections = tuple(name for name in rejections if name != level)
    elif facts["outside"] in ("clip", "floor"):
        own["tis_mode"] = "clip"
    own["rs_levels"] = rejections
    if rejections:
        bounds = {side: facts[f"rejections.{rejections[0]}.{side}"] for side in ("lower", "upper")}
        own |= {"rs_level": rejections[0], "rs.lower": bounds["lower"], "rs.upper": bounds["upper"]}
    elif facts["veto"] is not None:  # the veto needs use_rs, here with bounds that reject nothing
        own |= {"rs_level": level, "rs.lower": 0.0, "rs.upper": np.inf}
    return own
