"""miles at commit 31f1ca96: its own clamp or IcePop, or slime's MIS helper."""

from __future__ import annotations

from functools import partial

from rcdiag.results import Finding
from rcdiag.trainers.miles.losses import UPDATE
from rcdiag.trainers.miles.metrics import metrics
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.slime import with_opsm
from rcdiag.trainers.slime.correction import HELPER, Functions, facts
from rcdiag.trainers.slime.metrics import normaliser
from rcdiag.trainers.trainer import Config, generation

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


def complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Read a file that only has keys of the helper as the file of --custom-config-path."""
    of_helper = settings.keys() & set(HELPER)
    if "custom_tis_function_path" in settings or not of_helper:
        return settings, FUNCTIONS.helper_defaults(settings)
    note = Finding(
        slug="read-as-helper-yaml",
        severity="note",
        message="the file has keys of the MIS helper but no custom_tis_function_path: it is read "
        "as the YAML of --custom-config-path, with --use-tis and the helper as function",
        fix=f"say so in the file: custom_tis_function_path: {MIS}",
        evidence={"keys": sorted(of_helper)},
    )
    return {"use_tis": True, "custom_tis_function_path": MIS, **settings}, [note]


GENERATIONS = (
    generation(
        "miles",
        package=__name__,
        presets={
            "default": {},
            "tis_by_flag": {"use_tis": True},
            "icepop_by_flag": {"use_tis": True, "custom_tis_function_path": ICEPOP},
            "mis_helper": {"use_tis": True, "custom_tis_function_path": MIS},
        },
        read=FUNCTIONS.read,
        ignored=FUNCTIONS.ignored,
        metrics=metrics,
        normaliser=normaliser,
        update=UPDATE,
        complete=complete,
        loss=with_opsm,
        facts=partial(facts, clamps=True),
    ),
)
