"""slime corrects by a function: its own clamp, its own IcePop, or the MIS helper.

Sources: slime commit 624b824a8 (2026-08-21), slime/utils/arguments.py,
slime/backends/megatron_utils/loss.py, and examples/train_infer_mismatch_helper (`mis.py` and
`mis.yaml`).
"""

from __future__ import annotations

from typing import Any

from rcdiag.results import Finding
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.slime import mis
from rcdiag.trainers.slime.built_in import metrics, quantities
from rcdiag.trainers.slime.chosen_by_flags import FLAGS, HELPER, Functions, is_run, is_script_of
from rcdiag.trainers.slime.emit import custom_config
from rcdiag.trainers.slime.loss_in_config import loss_in
from rcdiag.trainers.slime.losses import UPDATE
from rcdiag.trainers.trainer import Claim, Config, ConfigFile, Trainer

LOSS = "slime.backends.megatron_utils.loss"
MIS = "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp"
FUNCTIONS = Functions(
    by_path={
        "loss.vanilla_tis_function": "tis",
        "loss.icepop_function": "icepop",
        "mis.compute_mis_weights_with_cp": "helper",
        "mis.compute_mis_weights": "helper",
    },
    helper=MIS,
    helper_is_asked=True,
)
# The helper's YAML is what slime's users write most; a file of flags alone is told by `_complete`.
SETTINGS: dict[str, Any] = {
    **mis.SETTINGS,
    **FLAGS,
    "use_tis": True,
    "custom_tis_function_path": MIS,
}


def _complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Read flags without the helper's keys as slime does, where its own clamp is the default."""
    of_flags = document.format == "flags" or settings.keys() & (FLAGS.keys() - {"use_tis"})
    if not (of_flags and settings):
        return settings, []
    own = {} if settings.keys() & HELPER.keys() else {"custom_tis_function_path": None}
    settings = {"use_tis": False, **own, **settings}
    return settings, FUNCTIONS.helper_defaults(settings)


def _claim(config: Config, document: Document) -> Claim | None:
    """Claim settings by names that only miles, with a copy of the helper, has as well."""
    named = is_script_of(document, "slime", "miles")
    if SETTINGS.keys() & config.keys():
        return Claim(0.97 if named else 0.9)
    return Claim(0.5) if named and is_run(document) else None


GENERATIONS = (
    Trainer(
        name="slime",
        family="slime",
        package="rcdiag.trainers.slime",
        newest=True,
        settings=SETTINGS,
        unset={"use_tis": False, "custom_tis_function_path": None},
        presets={
            "default": {},
            "tis_by_flag": {"custom_tis_function_path": None},
            "icepop_by_flag": {"custom_tis_function_path": f"{LOSS}.icepop_function"},
        },
        read=FUNCTIONS.read,
        ignored=FUNCTIONS.ignored,
        quantities=quantities,
        metrics=metrics,
        normaliser=mis.normaliser,
        update=UPDATE,
        config=ConfigFile(
            claim=_claim,
            whole=is_run,
            loss=loss_in,
            complete=_complete,
            write=custom_config,
            needs=(
                "the file of --custom-config-path; settings of the MIS helper need --use-tis and",
                f"--custom-tis-function-path {MIS}",
            ),
        ),
    ),
)
