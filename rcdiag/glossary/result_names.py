"""Names that results have as keys or values, and not as fields, are explained here.

To add one: an entry here.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from rcdiag.glossary.entry import Entry, Kind, by_hand, unnamed_entry

_JSON = "rcdiag replay rollouts.parquet --model CHECKPOINT --json | jq"

NAMES: dict[str, Entry] = {
    "embedding": unnamed_entry(
        what="Part of the model: the token embedding, and the head where both share a weight.",
        example=f"{_JSON} '.presets[].gradient.norm_by_layer.embedding'",
        see=("norm_by_layer", "head"),
    ),
    "layer 0": unnamed_entry(
        what="Part of the model: its first layer; the others are counted on, layer 1 and so forth.",
        example=f"""{_JSON} '.presets[].gradient.norm_by_layer["layer 0"]'""",
        see=("norm_by_layer",),
    ),
    "norm_by_layer.norm": unnamed_entry(
        what="Part of the model: what stands after the layers, as a rule the last norm.",
        example=f"{_JSON} '.presets[].gradient.norm_by_layer.norm'",
        see=("norm_by_layer",),
    ),
    "head": unnamed_entry(
        what="Part of the model: the output head, where it has a weight of its own.",
        example=f"{_JSON} '.presets[].gradient.norm_by_layer.head'",
        see=("norm_by_layer", "embedding"),
    ),
    "health.cannot judge": unnamed_entry(
        what="Verdict on an update where no rule of health is broken and a number that decides is "
        "not known: it is never ok then.",
        example="rcdiag replay rollouts.parquet --json | jq '.presets[].health.not_judged'",
        see=("health", "not_judged", "health.verdict"),
    ),
}


def find(name: str) -> str | None:
    """Take `layer 17` for `layer 0`, and every other layer too."""
    return "layer 0" if re.fullmatch(r"layer[\s_-]*\d+", name.lower()) else None


KIND: Kind = replace(by_hand("name in results", "Names in results", NAMES), find=find)
