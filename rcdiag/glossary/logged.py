"""Keys that trainers log: their entries, from `keys/`."""

from __future__ import annotations

from rcdiag.glossary import options, worked
from rcdiag.glossary.entry import LOG_RATIO, Entry, Kind, first_clause
from rcdiag.glossary.generations import BY_K, SLIME, label
from rcdiag.glossary.keys import KEYS, full_name
from rcdiag.glossary.keys.base import Key
from rcdiag.glossary.keys.debug import DEBUG
from rcdiag.glossary.keys.off_policy import OFF_POLICY
from rcdiag.glossary.keys.rejection import OF_OPTIONS, OPTION, of_option

# The longest first. `train/` and `actor/` are put before it by the trainers' loggers.
PREFIXES = ("rollout_corr/", "mismatch/mismatch_", "mismatch/", "mismatch_", "training/", "mis_")
LOGGERS = ("actor/", "train/")


def bare(name: str) -> str:
    """A key without the prefixes of its trainer."""
    for prefix in LOGGERS:
        name = name.removeprefix(prefix)
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def find(name: str) -> str | None:
    """A key as some trainer calls it, with or without prefix."""
    key = bare(name)
    return name if key in KEYS or of_option(key) else None


def listed(key: str) -> str:
    """A key as the newest of its trainers calls it."""
    verl = [name for group in KEYS[key].of for name in group if name not in SLIME]
    return full_name(verl[-1] if verl else SLIME[0], key)


def generations(key: str) -> dict[str, str]:
    """Trainers -> their name for a key, and what it is there."""
    return {
        label(trainers): full_name(trainers[0], key) + (f": {text}" if text else "")
        for part, text in KEYS[key].of.items()
        for trainers in _by_name(part, key)
    }


def _by_name(trainers: tuple[str, ...], key: str) -> list[tuple[str, ...]]:
    """Trainers of a group apart by what they call the key."""
    named: dict[str, list[str]] = {}
    for trainer in trainers:
        named.setdefault(full_name(trainer, key), []).append(trainer)
    return [tuple(each) for each in named.values()]


def entry(name: str) -> Entry:
    key = bare(name)
    if (found := of_option(key)) is not None:
        return _of_option(name, *found)
    about = KEYS[key]
    return Entry(
        name=name,
        kind=KIND.title,
        what=about.what,
        formula=about.formula,
        direction=about.direction or LOG_RATIO,
        units=_units(key, about),
        healthy=about.healthy,
        generations=generations(key),
        example=_example(key, about),
        see=about.see,
    )


def _units(key: str, about: Key) -> str:
    if key not in OF_OPTIONS:
        return about.units
    return "share" if "fraction" in key else "nats"


def _of_option(name: str, general: str, option: str) -> Entry:
    """A key of one option: the statistic is the option's, what is made of it the key's."""
    about, key = KEYS[general], bare(name)
    return Entry(
        name=name,
        kind=KIND.title,
        what=f"{about.what} x is {options.statistic(option)}.",
        formula=about.formula,
        direction=LOG_RATIO,
        units=_units(general, about),
        healthy=about.healthy,
        generations={
            group: text.replace(OPTION, option) for group, text in generations(general).items()
        },
        example=f"{worked.TOY}, bounds {worked.bound_of(option)}: "
        + _values({trainer: full_name(trainer, key) for trainer in BY_K}),
        see=(option,),
    )


def _example(key: str, about: Key) -> str:
    """Its value by each generation on the toy."""
    if key in OF_OPTIONS:
        return f"rcdiag explain {key.replace(OPTION, 'token_k1')}"
    if key in DEBUG:
        return f"rcdiag score rollouts.parquet --json | jq .mismatch.{about.see[0]}"
    names = {trainer: full_name(trainer, key) for group in about.of for trainer in group}
    return f"{worked.PADDED_TOY}{'' if key in OFF_POLICY else worked.BOUNDED}: {_values(names)}"


def _values(names: dict[str, str]) -> str:
    found = worked.logged(names)
    return "; ".join(f"{value} in {trainers}" for trainers, value in found.items())


def _lines() -> dict[str, str]:
    return {listed(key): first_clause(about.what) for key, about in KEYS.items()}


KIND: Kind = Kind(
    title="number that trainers log",
    plural="Numbers that trainers log (a prefix may be left out)",
    lines=_lines,
    entry=entry,
    find=find,
)
