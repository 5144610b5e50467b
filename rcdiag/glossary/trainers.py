"""Trainer generations."""

from __future__ import annotations

from rcdiag.glossary.describe import settings_text
from rcdiag.glossary.entry import Entry, Kind
from rcdiag.glossary.generations import OLD, SLIME
from rcdiag.glossary.keys import full_name
from rcdiag.trainers import NEWEST_VERL, TRAINERS

# Source: reference/verl.md 0 and reference/frameworks.md 1.
WHEN: dict[str, str] = {
    "verl-0.6.0": "released 2025-10-15",
    "verl-20251027": "unreleased: verl #3915 of 2025-10-27",
    "verl-0.6.1": "released 2025-11-14",
    "verl-20251203": "unreleased: verl #4359 of 2025-12-03",
    "verl-0.7.0": "released 2026-01-05",
    "verl-0.7.1": "released 2026-03-16",
    "verl-0.8.0": "released 2026-06-01",
    "verl-0.9": "0.9.0 released 2026-08-14, 0.9.1 on 2026-09-01",
    "slime": "commit 624b824a8 of 2026-08-21",
}


def place(name: str) -> str:
    """Where the settings stand in the trainer's own config."""
    if name in SLIME:
        return "the YAML file of --custom-config-path"
    return "algorithm" if name in OLD else "algorithm.rollout_correction"


def entry(name: str) -> Entry:
    trainer = TRAINERS[name]
    return Entry(
        name=name,
        kind=KIND.title,
        what=_line(name),
        generations={
            "keys": f"{full_name(name, 'kl')}, {full_name(name, _weight(name))}",
            "settings": f"in {place(name)}: {settings_text(trainer.settings)}",
            "presets": ", ".join(trainer.presets),
        },
        example=f"rcdiag score rollouts.parquet --trainer {name}",
    )


def _weight(name: str) -> str:
    return "tis_weight_before_bound" if name in SLIME else "rollout_is_mean"


def _line(name: str) -> str:
    when = f" ({WHEN[name]})" if name in WHEN else ""
    newest = "; what `verl` means" if name == NEWEST_VERL else ""
    return f"{TRAINERS[name].about}{when}{newest}"


KIND: Kind = Kind(
    title="trainer",
    plural="Trainers",
    lines=lambda: {name: _line(name) for name in TRAINERS},
    entry=entry,
    aliases={"verl": NEWEST_VERL},
)
