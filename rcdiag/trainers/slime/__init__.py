"""slime at commit 624b824a8: an MIS helper, and its own weights by flags."""

from __future__ import annotations

from msgspec.structs import replace

from rcdiag.results import Finding
from rcdiag.trainers.loss_choice import LossChoice, number, value
from rcdiag.trainers.settings_document import Document
from rcdiag.trainers.slime.correction import FLAGS, HELPER, Functions, facts, is_run
from rcdiag.trainers.slime.losses import UPDATE
from rcdiag.trainers.slime.metrics import metrics, normaliser
from rcdiag.trainers.trainer import Config, generation

FUNCTIONS = Functions(
    by_path={
        "loss.vanilla_tis_function": "tis",
        "loss.icepop_function": "icepop",
        "mis.compute_mis_weights_with_cp": "helper",
        "mis.compute_mis_weights": "helper",
    },
    helper="examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp",
    helper_is_asked=True,
)


def complete(settings: Config, document: Document) -> tuple[Config, list[Finding]]:
    """Assume slime's own clamp if flags name no function.

    The defaults are those of the helper's YAML, the file that slime's users usually write.
    """
    of_flags = document.format == "flags" or settings.keys() & set(FLAGS)
    if not (of_flags and settings):
        return settings, []
    function = {} if settings.keys() & set(HELPER) else {"custom_tis_function_path": None}
    settings = {"use_tis": False, **function, **settings}
    return settings, FUNCTIONS.helper_defaults(settings)


def with_opsm(document: Document, choice: LossChoice) -> LossChoice:
    """Add OPSM's threshold, which has a default and only applies with --use-opsm."""
    if value(document, "use_opsm") is not True:
        return choice
    delta = number(document, "opsm_delta")
    return replace(choice, own={**choice.own, "opsm_delta": 1e-4 if delta is None else delta})


GENERATIONS = (
    generation(
        "slime",
        package=__name__,
        unset={"use_tis": False, "custom_tis_function_path": None},
        presets={
            "default": {},
            "tis_by_flag": {"custom_tis_function_path": None},
            "icepop_by_flag": {
                "custom_tis_function_path": "slime.backends.megatron_utils.loss.icepop_function"
            },
        },
        read=FUNCTIONS.read,
        ignored=FUNCTIONS.ignored,
        metrics=metrics,
        normaliser=normaliser,
        update=UPDATE,
        whole=is_run,
        complete=complete,
        loss=with_opsm,
        facts=facts,
    ),
)
