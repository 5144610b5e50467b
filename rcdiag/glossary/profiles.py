"""Profiles are explained by the words on their definitions."""

from __future__ import annotations

from rcdiag.glossary.entry import LOG_RATIO, Entry, Kind
from rcdiag.statistics.profiles import LABELS, PROFILES


def _bins(name: str) -> str:
    labels = LABELS.get(name) or PROFILES[name].labels()
    if len(labels) <= 4:
        return ", ".join(labels)
    return f"{labels[0]}, {labels[1]}, ..., {labels[-1]}"


def entry(name: str) -> Entry:
    axis = PROFILES[name]
    needs = f" Needs {axis.needs}." if axis.needs else ""
    return Entry(
        name=name,
        kind=KIND.title,
        what=f"Mismatch by {axis.title}. {axis.about}{needs}",
        formula="per bin: mean and rms of log_ratio, k3, share of sum log_ratio^2; bins "
        + _bins(name),
        direction=LOG_RATIO,
        units=f"{axis.unit or 'none'}; nats for the mismatch of a bin",
        example="rcdiag score rollouts.parquet --html mismatch.html",
    )


KIND: Kind = Kind(
    title="profile",
    plural="Profiles: mismatch along an axis",
    names=lambda: PROFILES,
    line=lambda name: f"mismatch by {PROFILES[name].title}",
    entry=entry,
)
