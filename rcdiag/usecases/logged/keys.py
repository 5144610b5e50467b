"""Recognises the keys of a log by the trainer's list of keys, whatever prefix the logger adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from rcdiag.errors import RcdiagError, setting
from rcdiag.logs import Log
from rcdiag.trainers import families
from rcdiag.trainers.toml_words import KeyWords, read_keys
from rcdiag.trainers.trainer import Trainer

# Prefix of rcdiag's metrics in the list of keys: `mismatch.prob_diff_mean`.
MISMATCH = "mismatch."


class KeyNames(Struct, frozen=True):
    """The keys of one generation of a trainer, with all spellings that a log may have."""

    trainer: Trainer
    words: Mapping[str, KeyWords]  # the key as the generation logs it -> its words
    spellings: Mapping[str, str]  # spelling, of any generation -> the key as this one logs it

    @classmethod
    def of(cls, trainer: Trainer, computed: Iterable[str] = ()) -> KeyNames:
        """Read the trainer's list of keys; `computed` keys that are not in it are added by name."""
        words, spellings = {}, {key: key for key in computed}
        for one in read_keys(trainer.package).values():
            own = one.names.get(trainer.name)
            if own is None:
                continue
            words[own] = one
            spellings |= {name: own for name in one.names.values()}
            # A tag of ROLL's keys, `actor/clipfrac@sum`, is cut off by its tracker.
            spellings |= {name.partition("@")[0]: own for name in one.names.values()}
        for own, one in words.items():
            for name in one.also_called:
                spellings.setdefault(name, own)
        return cls(trainer, words, spellings)

    def ours(self, key: str) -> str | None:
        """Return the key as this generation logs it; None if it does not log this key.

        Loggers may add prefixes with a slash, such as `train/`.
        """
        while key:  # train/mis_kl, mis_kl
            if key in self.spellings:
                return self.spellings[key]
            _, _, key = key.partition("/")
        return None

    def metric(self, key: str) -> str | None:
        """Return the metric of `mismatch` that a key logs; None if it logs none of them."""
        words = self.words.get(key)
        if words is None or words.result is None or not words.result.startswith(MISMATCH):
            return None
        return words.result.removeprefix(MISMATCH)

    def in_generation(self, key: str, other: Trainer) -> str | None:
        """Return the key as another generation logs it; None if it does not log it."""
        words = self.words.get(key)
        return None if words is None else words.names.get(other.name)

    def note(self, key: str) -> str:
        """Return the notes on a key in the trainer's list, for a number that is not explained."""
        words = self.words.get(key)
        if words is None:
            return ""
        detail = words.generations.get(self.trainer.name, "")
        return ". ".join(text.rstrip(".") for text in (detail, words.note or "") if text)


def check_keys(log: Log, trainer: Trainer) -> None:
    """Refuse a log without any key of the trainer, and say which trainer's keys it has."""
    if count_keys(log.keys, trainer):
        return
    other = max(families().values(), key=lambda one: count_keys(log.keys, one))
    some = ", ".join(list(log.keys)[:4])
    counts = count_keys(log.keys, other)
    hint = (
        f"{counts} of its keys are those of {other.family}: {setting('trainer', other.family)}"
        if counts
        else "give the log of the run that the table was recorded in, with the metrics of its "
        "rollout correction"
    )
    raise RcdiagError(f"{log.path}: has no key of {trainer.name}; it has {some}", hint=hint)


def count_keys(keys: Iterable[str], trainer: Trainer) -> int:
    """Count the keys that rcdiag may compute for a trainer."""
    names, known = KeyNames.of(trainer), spelled_keys(trainer)
    return sum(names.ours(key) in known for key in keys)


def spelled_keys(trainer: Trainer) -> set[str]:
    """Return the keys that rcdiag may compute for a trainer, as its log may spell them."""
    names = KeyNames.of(trainer)
    known = set()
    for spelling, key in names.spellings.items():
        words = names.words[key]
        if words.result is None or names.metric(key) is not None:
            known |= {prefix + spelling for prefix in ("", *words.loggers)}
    return known
