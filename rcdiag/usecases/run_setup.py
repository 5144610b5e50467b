"""What kind of run a training log is of: the trainer, its generation and its correction."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from rcdiag.corrections.describe import describe
from rcdiag.diagnosis.logged.run import LoggedRun
from rcdiag.logs import Log
from rcdiag.trainers import TRAINERS, families, find_trainer
from rcdiag.trainers.by_generation import label
from rcdiag.trainers.own_config import read_trainer_config
from rcdiag.trainers.trainer import Trainer
from rcdiag.usecases.logged.keys import KeyNames, count_keys


class RunSetup(Struct, frozen=True, kw_only=True):
    """The trainer that wrote a log, as far as its keys or a configuration tell."""

    family: str | None = None  # None where no key is a trainer's
    generations: str | None = None  # those that log most of its keys, or that of a configuration
    correction: str | None = None  # what the correction does; None where nothing tells
    names: KeyNames | None = None  # of the newest of these generations

    def note(self, key: str) -> str:
        """Return what the trainer does to the numbers behind a key: clamps, masks, means."""
        ours = self.names and self.names.ours(key)
        return self.names.note(ours) if self.names and ours else ""


def setup_of(
    run: LoggedRun, trainer: str | None, trainer_config: str | Path | None = None
) -> RunSetup:
    """Tell a run's trainer by a given name, by its configuration file, or by the keys it logs."""
    if trainer_config is not None:
        read = read_trainer_config(Path(trainer_config), trainer)
        settings = {**read.trainer.settings, **read.settings}
        says = [describe(read.trainer.read(settings)), *read.trainer.ignored(settings)]
        return RunSetup(
            family=read.trainer.family,
            generations=read.trainer.name,
            correction=". ".join(says),
            names=KeyNames.of(read.trainer),
        )
    family = find_trainer(trainer).family if trainer else _family_of(run.log)
    if family is None:
        return RunSetup()
    likeliest = _generations(run.log, family)
    return RunSetup(
        family=family,
        generations=label([one.name for one in likeliest]),
        correction=_by_keys(run),
        names=KeyNames.of(likeliest[-1]),
    )


def _by_keys(run: LoggedRun) -> str | None:
    """Say what the correction does by the numbers that it logs; None where it logs none."""
    weights = next(
        (run.series[name] for name in ("weight_mean", "ess") if name in run.series), None
    )
    rejects = run.series.get("rejected")
    if weights is None and rejects is None:
        return None
    parts = [f"importance weights (`{weights.key}`)" if weights else "no weights"]
    parts.append(f"rejection (`{rejects.key}`)" if rejects else "no rejection that is logged")
    return ", ".join(parts)


def _family_of(log: Log) -> str | None:
    """Return the trainer that most keys of a log are of; None where none has any."""
    counts = {name: count_keys(log, trainer) for name, trainer in families().items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None


def _generations(log: Log, family: str) -> list[Trainer]:
    """Return the generations of a trainer that log most of a log's keys by the names it has.

    Loggers put prefixes before a name.
    """

    def logs(names: KeyNames, key: str) -> bool:
        ours = names.ours(key)
        return ours is not None and (key == ours or key.endswith(f"/{ours}"))

    counts = {
        trainer.name: sum(logs(KeyNames.of(trainer), key) for key in log.keys)
        for trainer in TRAINERS.values()
        if trainer.family == family
    }
    most = max(counts.values())
    return [TRAINERS[name] for name, count in counts.items() if count == most]
