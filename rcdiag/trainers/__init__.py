"""The trainers whose corrections rcdiag computes, one folder for each.

A folder holds all that a trainer is: `Trainer` definitions, one for each generation, with presets,
metrics under the trainer's own keys, losses, config in and config out, and the words on keys and
settings as TOML. To add a trainer: a folder, and `TRAINERS.add(...)` for each of its generations.
"""

from __future__ import annotations

from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.registry import Registry
from rcdiag.trainers import (
    areal,
    axolotl,
    miles,
    ms_swift,
    nemo_rl,
    open_instruct,
    openrlhf,
    prime_rl,
    roll,
    skyrl,
    slime,
    trl,
    verl,
)
from rcdiag.trainers.trainer import Trainer

# The oldest generation of each trainer comes first.
TRAINERS: Registry[Trainer] = Registry(
    "trainer",
    (
        *verl.GENERATIONS,
        *slime.GENERATIONS,
        *trl.GENERATIONS,
        *axolotl.GENERATIONS,
        *openrlhf.GENERATIONS,
        *skyrl.GENERATIONS,
        *nemo_rl.GENERATIONS,
        *areal.GENERATIONS,
        *prime_rl.GENERATIONS,
        *roll.GENERATIONS,
        *open_instruct.GENERATIONS,
        *miles.GENERATIONS,
        *ms_swift.GENERATIONS,
    ),
)
DEFAULT = verl.FAMILY


def families() -> dict[str, Trainer]:
    """Return the newest generation of each trainer, by the trainer's name."""
    newest: dict[str, Trainer] = {}
    for trainer in TRAINERS.values():
        chosen = newest.get(trainer.family)
        if chosen is None or not chosen.newest:
            newest[trainer.family] = trainer
    return newest


def find_trainer(name: str) -> Trainer:
    """Find the generation of that name; a trainer's name means its newest generation."""
    names = trainer_names()
    if name not in names:
        raise RcdiagError(
            f"trainer {name}: no such trainer",
            hint=f"{did_you_mean(name, names)}known: {', '.join(names)}",
        )
    return families().get(name) or TRAINERS[name]


def spoken_name(trainer: Trainer) -> str:
    """Return the shortest name by which `find_trainer` finds a generation."""
    return trainer.family if families()[trainer.family] is trainer else trainer.name


def trainer_names() -> list[str]:
    """Return all names that `find_trainer` takes."""
    return list(dict.fromkeys([*families(), *TRAINERS]))
