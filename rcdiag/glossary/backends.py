"""Backends that score policies are explained by the words on their definitions."""

from __future__ import annotations

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import Backend, Option
from rcdiag.glossary.entry import Entry, Kind, first_clause


def entry(name: str) -> Entry:
    backend = BACKENDS[name]
    return Entry(
        name=name,
        kind=KIND.title,
        what=f"{backend.says} Its policies stand for the {_SIDES[backend.role]}.",
        formula=f"--policy NAME={name}[:DTYPE][,key=value...]",
        units=f"dtypes: {', '.join(backend.dtypes)}; {backend.default_dtype} where none is given",
        generations={key: _option_text(option) for key, option in backend.known_options.items()},
        example=_example(backend),
        see=("engine", "trainer"),
    )


_SIDES = {"engine": "inference engine that sampled", "trainer": "trainer"}


def _option_text(option: Option) -> str:
    if isinstance(option.takes, tuple):
        return f"{option.says}: {', '.join(option.takes)}"
    return option.says


def _example(backend: Backend) -> str:
    name = backend.default_policy or backend.name
    return f"--policy {name}={backend.name}:{backend.default_dtype}"


KIND: Kind = Kind(
    title="backend",
    plural="Backends that score policies",
    names=lambda: BACKENDS,
    line=lambda name: first_clause(BACKENDS[name].says),
    entry=entry,
)
