"""Which trainer, generation and correction a training log comes from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.describe import describe
from rcdiag.corrections.sequences import rows_of
from rcdiag.corrections.trainer_means import Batch
from rcdiag.diagnosis.logged.run import Known, LoggedRun
from rcdiag.logs import Log
from rcdiag.statistics.pair import PolicyPair
from rcdiag.table.token_batch import TokenBatch
from rcdiag.trainers import TRAINERS, families, find_trainer
from rcdiag.trainers.by_generation import label
from rcdiag.trainers.own_config import TrainerConfig, read_trainer_config
from rcdiag.trainers.trainer import Trainer
from rcdiag.usecases.logged.keys import KeyNames, spelled_keys

# A made-up batch shows the least ESS that a trainer logs: its number of tokens, and the size of
# their log-ratios, which is beyond all bounds but within the trainers' clamp.
TOKENS, FAR = 1000, 15.0
# Under this name TRL's asynchronous GRPO logs the KL to the sampler, always beside `ratio`; its
# GRPO, RLOO and KTO log that to the reference model (trl/trainer/grpo_trainer.py).
OF_MANY = ("kl", "train/kl")


class RunSetup(Struct, frozen=True, kw_only=True):
    """The trainer that wrote a log, as far as its keys or a configuration show it."""

    family: str | None = None  # None if no trainer has the log's keys
    generations: str | None = None  # those with most of the log's keys, or the configuration's
    correction: str | None = None  # description of the correction; None if it is unknown
    names: KeyNames | None = None  # of the newest of these generations
    known: Known = Known()  # from the trainer's configuration file

    def note(self, key: str) -> str:
        """Return a note on how the trainer computes a key's number: clamps, masks, means."""
        ours = self.names and self.names.ours(key)
        return self.names.note(ours) if self.names and ours else ""


def setups_of(
    runs: Sequence[LoggedRun], trainer: str | None, trainer_config: str | Path | None
) -> list[RunSetup]:
    """Identify the trainers of several runs.

    If some have keys of the trainer that is given, by name or by its configuration, it counts for
    these alone, and the others are identified by their keys.
    """
    given = [setup_of(run, trainer, trainer_config) for run in runs]
    by_keys = [_families_of(run) for run in runs]
    fits = [not alike or one.family in alike for one, alike in zip(given, by_keys, strict=True)]
    return [
        one if of_given or not any(fits) else setup_of(run, None)
        for run, one, of_given in zip(runs, given, fits, strict=True)
    ]


def setup_of(
    run: LoggedRun, trainer: str | None, trainer_config: str | Path | None = None
) -> RunSetup:
    """Identify a run's trainer: by its configuration file, a given name, or the logged keys."""
    if trainer_config is not None:
        read = read_trainer_config(Path(trainer_config), trainer)
        settings = {**read.trainer.settings, **read.settings}
        says = [describe(read.trainer.read(settings)), *read.trainer.ignored(settings)]
        return RunSetup(
            family=read.trainer.family,
            generations=read.trainer.name,
            correction=". ".join(says),
            names=KeyNames.of(read.trainer),
            known=_known(read, run),
        )
    alike = [find_trainer(trainer).family] if trainer else _families_of(run)
    if not alike:
        return RunSetup()
    family, *others = alike
    likeliest = _generations(run.log, family)
    names = label([one.name for one in likeliest])
    return RunSetup(
        family=family,
        generations=f"{names} (or {', '.join(others)}: the same keys)" if others else names,
        correction=_by_keys(run),
        names=KeyNames.of(likeliest[-1]),
    )


def _known(read: TrainerConfig, run: LoggedRun) -> Known:
    """Return what the settings of a correction imply for the numbers of a log."""
    correction = read.trainer.read({**read.trainer.settings, **read.settings})
    weighting, bypass = correction.weighting, correction.mode == "bypass"
    if weighting is None:
        return Known(veto=correction.veto, bypass=bypass)
    ess = run.series.get("ess")
    return Known(
        lower=weighting.lower_or_reciprocal,
        upper=weighting.upper,
        veto=correction.veto,
        bypass=bypass,
        of_tokens=weighting.level == "token",
        least_ess=None if ess is None else _least_ess(read.trainer, correction, ess.key),
    )


def _least_ess(trainer: Trainer, correction: Correction, key: str) -> float | None:
    """Return the least effective sample size that a trainer can log, computed by its own code.

    None if it logs none, or if the weights do not have two bounds. Weights clipped to [lower,
    upper] have the least ESS if a share lower / (lower + upper) of the tokens is at the upper bound
    and the others are at the lower one (Kantorovich); weights that are not clipped from below have
    it with a single token above the upper bound.
    """
    weighting, ours = correction.weighting, KeyNames.of(trainer).ours(key)
    assert weighting is not None
    lower, upper = weighting.lower_or_reciprocal, weighting.upper
    if not 0.0 < lower < upper < np.inf or weighting.outside == "zero":
        return None
    logged = [
        trainer.metrics(_two_ratios(above), correction)
        for above in (round(TOKENS * lower / (lower + upper)), 1)
    ]
    return min(one[ours] for one in logged) if ours in logged[0] else None


def _two_ratios(above: int) -> Batch:
    """Return responses of one token each; `above` have the ratio e^FAR, the others e^-FAR."""
    log_ratio = np.repeat([-FAR, FAR], [TOKENS - above, above])
    batch = TokenBatch(
        log_probs={"rollout": np.minimum(-log_ratio, 0.0), "old": np.minimum(log_ratio, 0.0)},
        lengths=np.ones(TOKENS, np.int64),
        cluster=np.arange(TOKENS, dtype=np.uint64),
        row=np.arange(TOKENS),
        token_id=np.zeros(TOKENS, np.int32),
        position=np.zeros(TOKENS, np.int64),
    )
    return Batch(rows_of(PolicyPair(batch, "rollout", "old")))


def _by_keys(run: LoggedRun) -> str | None:
    """Describe the correction by the numbers that the log has of it; None if it has none."""
    weights = next(
        (run.series[name] for name in ("weight_mean", "ess") if name in run.series), None
    )
    rejects = run.series.get("rejected")
    if weights is None and rejects is None and run.key_of_bypass is None:
        return None
    parts = [f"importance weights (`{weights.key}`)" if weights else "no weights logged"]
    parts.append(f"rejection (`{rejects.key}`)" if rejects else "no rejection logged")
    if run.key_of_bypass is not None:
        parts.append(f"bypass mode (`{run.key_of_bypass}`): means over micro-batches")
    return ", ".join(parts)


def _families_of(run: LoggedRun) -> list[str]:
    """Return the trainers that have most of a log's keys, often one; none if no trainer has any.

    A key counts for the trainers that account for most of it: `actor/ppo_kl` for verl, which logs
    it under this name, and not for slime, which logs `ppo_kl` or `train/ppo_kl`. Of trainers with
    equally many keys, those count that account for more of them.
    """
    asynchronous = not {"ratio", "train/ratio"}.isdisjoint(run.log.keys)
    unclear = run.named if asynchronous else run.named.union(OF_MANY)
    spelled = {name: spelled_keys(trainer) for name, trainer in families().items()}
    counts = dict.fromkeys(spelled, (0, 0))  # keys, and parts of them
    for key in set(run.log.keys) - unclear:
        fits = {name: _parts(key, of) for name, of in spelled.items()}
        for name, parts in fits.items():
            if parts == max(fits.values()) > 0:
                counts[name] = counts[name][0] + 1, counts[name][1] + parts
    most = max(counts.values())
    return [name for name, count in counts.items() if count == most and count[0]]


def _parts(key: str, spelled: Collection[str]) -> int:
    """Return how many parts of a key, from its end, a trainer's key is; 0 if it has none."""
    while key and key not in spelled:
        _, _, key = key.partition("/")
    return len(key.split("/")) if key else 0


def _generations(log: Log, family: str) -> list[Trainer]:
    """Return the generations of a trainer that have most of a log's keys.

    A key counts with or without prefixes that loggers add.
    """

    def count_of(trainer: Trainer) -> int:
        names = KeyNames.of(trainer)
        found = ((key, names.ours(key)) for key in log.keys)
        return sum(ours is not None and f"/{key}".endswith(f"/{ours}") for key, ours in found)

    counts = {
        trainer.name: count_of(trainer) for trainer in TRAINERS.values() if trainer.family == family
    }
    most = max(counts.values())
    return [TRAINERS[name] for name, count in counts.items() if count == most]
