"""A correction as the settings of a trainer, to paste into its configuration.

To add a trainer: a function from a correction to what is written, and one line in WRITERS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rcdiag.corrections.bounds import equivalent
from rcdiag.corrections.correction import Correction
from rcdiag.errors import RcdiagError
from rcdiag.trainers import find_trainer
from rcdiag.trainers.settings_text import Inexpressible, Value, Written, block
from rcdiag.trainers.slime.emit import mis
from rcdiag.trainers.trainer import Refused
from rcdiag.trainers.verl.emit import by_k, by_ratios


@dataclass(frozen=True, slots=True)
class Emitted:
    """The settings of a trainer that do what a correction does."""

    trainer: str  # its full name
    settings: dict[str, Value]  # by the trainer's own names
    text: str  # YAML to paste, with comments


@dataclass(frozen=True, slots=True)
class Writer:
    """How a trainer's settings are written, and where they stand in its configuration."""

    write: Callable[[Correction], Written]
    places: tuple[str, ...]
    needs: tuple[str, ...]  # what else has to be set


_IN_VERL = (
    ("algorithm", "rollout_correction"),
    ("needs actor_rollout_ref.rollout.calculate_log_probs: true",),
)
_IN_SLIME = (
    (),
    (
        "the file of --custom-config-path; needs --use-tis and --custom-tis-function-path",
        "examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp",
    ),
)
WRITERS = {
    "verl-0.9": Writer(partial(by_k, icepop=True), *_IN_VERL),
    "verl-0.8.0": Writer(partial(by_k, icepop=True), *_IN_VERL),
    "verl-0.7.1": Writer(partial(by_k, icepop=False), *_IN_VERL),
    "verl-0.7.0": Writer(partial(by_ratios, loss="loss_type"), *_IN_VERL),
    "verl-20251203": Writer(partial(by_ratios, loss="use_policy_gradient"), *_IN_VERL),
    "verl-0.6.1": Writer(partial(by_ratios, loss="use_policy_gradient"), *_IN_VERL),
    "slime": Writer(mis, *_IN_SLIME),
}


def emit(correction: Correction, trainer: str) -> Emitted:
    """The settings of `trainer` that keep the same tokens and give the same weights.

    Raises RcdiagError with what the trainer lacks, and who has it, where there are none.
    """
    name = find_trainer(trainer).name
    if name not in WRITERS:
        raise RcdiagError(
            f"settings of {name} are not written by rcdiag", hint=f"one of {', '.join(WRITERS)}"
        )
    try:
        written = _checked(correction, name)
    except Inexpressible as error:
        raise RcdiagError(f"{name} has no {error.message}", hint=_who_could(correction)) from error
    writer = WRITERS[name]
    head = (f"rcdiag reads it with --trainer-config FILE --trainer {name}", *writer.needs)
    return Emitted(name, written.settings, block(written, head, writer.places))


def _checked(correction: Correction, name: str) -> Written:
    """What is written, read back as the trainer would."""
    written = WRITERS[name].write(correction)
    trainer = find_trainer(name)
    try:
        read = trainer.read({**trainer.settings, **written.settings})
    except Refused as error:
        raise Inexpressible(f"settings for it that it takes ({error.message})") from error
    if not equivalent(correction, read):
        raise Inexpressible("settings that do just this")
    return written


def _who_could(correction: Correction) -> str:
    able = [name for name in WRITERS if _expresses(correction, name)]
    return f"it can be written for {', '.join(able)}" if able else "no trainer known here has it"


def _expresses(correction: Correction, name: str) -> bool:
    try:
        _checked(correction, name)
    except Inexpressible:
        return False
    return True
