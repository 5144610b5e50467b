"""Groups of trainer generations that agree, and how a group is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rcdiag.trainers import TRAINERS
from rcdiag.trainers.slime import mis as slime
from rcdiag.trainers.trainer import Trainer
from rcdiag.trainers.verl import k_rejection as verl_k
from rcdiag.trainers.verl import ratio_rejection as verl_ratios
from rcdiag.trainers.verl import weights_only as verl_weights

Trainers = tuple[str, ...]


def _names(trainers: Iterable[Trainer]) -> Trainers:
    return tuple(trainer.name for trainer in trainers)


OLD = _names(verl_weights.TRAINERS)
BY_RATIO = _names(verl_ratios.TRAINERS)
BY_K = _names(verl_k.TRAINERS)
SLIME = _names(slime.TRAINERS)
VERL = (*OLD, *BY_RATIO, *BY_K)
LATER = (*BY_RATIO, *BY_K)

FIRST = ("verl-0.6.0",)
SECOND = ("verl-20251027",)
# Weight statistics are of raw weights up to 0.7.1, of applied weights from 0.8.0 on.
RAW = (*OLD, *BY_RATIO, "verl-0.7.1")
APPLIED = tuple(name for name in BY_K if name not in RAW)
# 0.8.0 alone compares applied weights with the bounds (verl #6806).
BROKEN = ("verl-0.8.0",)
MENDED = tuple(name for name in APPLIED if name not in BROKEN)


def label(trainers: Iterable[str]) -> str:
    """Names in the order of `TRAINERS`; three or more in a row as `first to last`."""
    order, wanted = list(TRAINERS), set(trainers)
    runs: list[list[str]] = []
    for index, name in enumerate(order):
        if name not in wanted:
            continue
        if runs and runs[-1][-1] == order[index - 1]:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(text for run in runs for text in _run(run))


def _run(run: list[str]) -> list[str]:
    """A run never goes from one trainer over into another."""
    verl = [name for name in run if name not in SLIME]
    other = [name for name in run if name in SLIME]
    return [*([f"{verl[0]} to {verl[-1]}"] if len(verl) > 2 else verl), *other]


def grouped(texts: Mapping[str, str]) -> dict[str, str]:
    """Trainer -> text as group -> text; trainers that say the same share a line."""
    groups: dict[str, list[str]] = {}
    for trainer, text in texts.items():
        groups.setdefault(text, []).append(trainer)
    return {label(trainers): text for text, trainers in groups.items()}
