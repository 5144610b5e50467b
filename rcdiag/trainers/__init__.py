"""The trainers whose corrections rcdiag computes, one folder for each.

A folder has the trainer's tables as TOML (`settings.toml`: type, place and written form of each
setting) and its functions: `correction.py`, `metrics.py`, `losses.py`. Its `__init__` lists a
`Trainer` for each generation. To add a trainer: a folder, and its name in FOLDERS; another package
calls `TRAINERS.add(...)` for each generation.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterable
from importlib.resources import files

from msgspec import Struct, convert

from rcdiag.entry import Entry
from rcdiag.errors import RcdiagError, did_you_mean
from rcdiag.registry import Registry
from rcdiag.trainers.toml_words import read_generations
from rcdiag.trainers.trainer import Trainer

# The folders of this package; each lists its `GENERATIONS`, oldest first. The names of generations
# begin with the folder's name, with `-` for `_`.
FOLDERS = (
    "verl",
    "slime",
    "trl",
    "trl_async",
    "axolotl",
    "openrlhf",
    "skyrl",
    "nemo_rl",
    "areal",
    "prime_rl",
    "roll",
    "open_instruct",
    "miles",
    "ms_swift",
    "rllm",
    "rlinf",
    "xtuner",
    "pipelinerl",
    "tunix",
    "tinker_cookbook",
    "torchtitan",
    "unsloth",
)
DEFAULT = "verl"


def _generations(folder: str) -> tuple[Trainer, ...]:
    generations: tuple[Trainer, ...] = importlib.import_module(f"{__name__}.{folder}").GENERATIONS
    return generations


TRAINERS: Registry[Trainer] = Registry(
    "trainer", lambda: (each for folder in FOLDERS for each in _generations(folder))
)


def families() -> dict[str, Trainer]:
    """Return the newest generation of each trainer, by trainer name."""
    return _newest(TRAINERS.values())


def _newest(trainers: Iterable[Trainer]) -> dict[str, Trainer]:
    newest: dict[str, Trainer] = {}
    for trainer in trainers:
        chosen = newest.get(trainer.family)
        if chosen is None or not chosen.newest:
            newest[trainer.family] = trainer
    return newest


def find_trainer(name: str) -> Trainer:
    """Return the generation of that name; the name of a trainer or fork means the newest one."""
    # A trainer that ships with rcdiag is found without importing the other folders.
    for folder in FOLDERS:
        if f"{name}-".startswith(f"{folder.replace('_', '-')}-"):
            generations = _generations(folder)
            by_name = {trainer.name: trainer for trainer in generations} | _newest(generations)
            if name in by_name:
                return by_name[name]
    if (original := forks().get(name)) is not None:
        return families()[original]
    names = trainer_names()
    if name not in names:
        _check_has_correction(name)
        raise RcdiagError(
            f"trainer {name}: no such trainer",
            hint=f"{did_you_mean(name, names)}known: {', '.join(names)}",
        )
    return families().get(name) or TRAINERS[name]


def forks() -> dict[str, str]:
    """Return for each fork the trainer whose correction code it uses."""
    return {
        fork: family
        for family, trainer in families().items()
        for words in read_generations(trainer.package).values()
        for fork in words.also_called
    }


class WithoutCorrection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trainer that does not correct the mismatch of sampler and trainer."""

    says: str
    seen: str  # the version and its date at which the code was read
    source: str
    aliases: tuple[str, ...] = ()

    def entry(self) -> Entry:
        """Describe what the trainer does with the sampler's log-probs, and when it was read."""
        return Entry(
            what=f"no correction to compute, as of {self.seen}: {self.says}",
            parts={"source": self.source},
        )


def trainers_without_correction() -> dict[str, WithoutCorrection]:
    """Return the trainers that are known not to correct, by each of their names."""
    text = files(__name__).joinpath("without_correction.toml").read_text(encoding="utf-8")
    table = convert(tomllib.loads(text), dict[str, WithoutCorrection])
    return {alias: one for name, one in table.items() for alias in (name, *one.aliases)}


def _check_has_correction(name: str) -> None:
    """Raise an error for a trainer that is known to have no correction; it says what it does."""
    known = trainers_without_correction().get(name.lower().replace("_", "-"))
    if known is not None:
        raise RcdiagError(
            f"trainer {name}: it has no correction to compute, as of {known.seen}: {known.says} "
            f"({known.source})",
            hint="score the two policies without a trainer, or name the trainer whose correction "
            f"you want to try: {', '.join(families())}",
        )


def spoken_name(trainer: Trainer) -> str:
    """Return the shortest name with which `find_trainer` finds a generation."""
    return trainer.family if families()[trainer.family] is trainer else trainer.name


def trainer_names() -> list[str]:
    """Return all names that `find_trainer` accepts."""
    return list(dict.fromkeys([*families(), *TRAINERS]))
