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
from rcdiag.trainers.conditions import ClaimRule
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
        if (other := trainers_not_computed().get(name.lower().replace("_", "-"))) is not None:
            raise other.refusal(f"trainer {name}")
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


class NotComputedTrainer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trainer without a correction, or with one that rcdiag does not compute."""

    says: str
    seen: str  # the version and its date at which the code was read
    source: str
    aliases: tuple[str, ...] = ()
    claims: tuple[ClaimRule, ...] = ()  # on its configuration files

    @property
    def states(self) -> str:
        """What the trainer does with the sampler's log-probs, and when it was read."""
        return f"rcdiag computes no correction for it, as of {self.seen}: {self.says}"

    def entry(self) -> Entry:
        """Describe the trainer for `rcdiag explain`."""
        return Entry(what=self.states, parts={"source": self.source})

    def refusal(self, of: str) -> RcdiagError:
        """Return the error for a name or file of the trainer."""
        return RcdiagError(
            f"{of}: {self.states} ({self.source})",
            hint="score the two policies without a trainer, or name the trainer whose correction "
            f"you want to try: {', '.join(families())}",
        )


def trainers_not_computed() -> dict[str, NotComputedTrainer]:
    """Return the trainers that rcdiag knows and does not compute, by each of their names."""
    text = files(__name__).joinpath("not_computed.toml").read_text(encoding="utf-8")
    table = convert(tomllib.loads(text), dict[str, NotComputedTrainer])
    return {alias: one for name, one in table.items() for alias in (name, *one.aliases)}


def spoken_name(trainer: Trainer) -> str:
    """Return the shortest name with which `find_trainer` finds a generation."""
    return trainer.family if families()[trainer.family] is trainer else trainer.name


def trainer_names() -> list[str]:
    """Return all names that `find_trainer` accepts."""
    return list(dict.fromkeys([*families(), *TRAINERS]))
