"""miles corrects by a function: its own clamp, its own IcePop, or the MIS helper of slime.

Sources: miles commit 31f1ca96 (2026-08-21), miles/utils/arguments.py,
miles/backends/training_utils/loss_hub/corrections.py, and
examples/infra_features/train_infer_mismatch_helper (`mis.py` and `mis.yaml`).
"""

from __future__ import annotations

from typing import Any

from rcdiag.results import Finding
from rcdiag.trainers.miles.emit import custom_config
from rcdiag.trainers.miles.losses import UPDATE
from rcdiag.trainers.miles.metrics import metrics, quantities
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.slime import mis
from rcdiag.trainers.slime.chosen_by_flags import FLAGS, HELPER, Functions, is_run, is_script_of
from rcdiag.trainers.slime.loss_in_config import loss_in
from rcdiag.trainers.trainer import Claim, Config, ConfigFile, Trainer

ICEPOP = "miles.backends.training_utils.loss_hub.corrections.icepop_function"
MIS = "examples.infra_features.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
FUNCTIONS = Functions(
    by_path={
        "corrections.vanilla_tis_function": "tis",
        "corrections.icepop_function": "icepop",
        "mis.compute_mis_weights_with_cp": "helper",
        "mis.compute_mis_weights_fsdp": "helper",
    },
    helper=MIS,
)
_SETTINGS: dict[str, Any] = {**FLAGS, **HELPER}


def _complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Read a file of the helper's keys alone as that of --custom-config-path."""
    if "custom_tis_function_path" in settings or not settings.keys() & HELPER.keys():
        return settings, FUNCTIONS.helper_defaults(settings)
    note = Finding(
        slug="read-as-helper-yaml",
        severity="note",
        message="the file has keys of the MIS helper and no custom_tis_function_path: it is read "
        "as the YAML of --custom-config-path, with --use-tis and the helper as function",
        fix=f"say so in the file: custom_tis_function_path: {MIS}",
        evidence={"keys": sorted(settings.keys() & HELPER.keys())},
    )
    return {"use_tis": True, "custom_tis_function_path": MIS, **settings}, [note]


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim a function of miles, and its own clamp by flags, which slime has as well."""
    path = config.get("custom_tis_function_path")
    if path is not None:
        own = "infra_features" in str(path) or str(path).startswith("miles.")
        return Claim(1.0) if own else None
    if is_script_of(document, "miles", "slime"):
        return Claim(0.97) if config else Claim(0.5) if is_run(document) else None
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
        read=FUNCTIONS.read,
        ignored=FUNCTIONS.ignored,
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
