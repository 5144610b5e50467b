"""Read the policy loss of an update, and its bounds, from a trainer's configuration file.

The columns `[header.loss]` of the trainer's `settings.toml` say where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.errors import RcdiagError
from rcdiag.losses import LOSSES
from rcdiag.trainers.config_text import VARIABLE
from rcdiag.trainers.settings_document import MISSING, Document
from rcdiag.trainers.settings_table import Chosen, LossColumns, Names


class LossChoice(Struct, frozen=True, kw_only=True):
    """What a file sets of the policy loss, in rcdiag's names; unset fields keep their defaults."""

    loss: str = ""  # "" if the file does not choose one
    aggregation: str | None = None
    denominator: str | None = None
    constant: float | None = None
    scale_factor: float | None = None
    own: Mapping[str, Any] = field(default_factory=dict)  # settings of losses
    notes: tuple[str, ...] = ()  # settings in the file that have no effect on the loss
    # Why rcdiag cannot compute the loss of this file; the user may still name another one.
    refused: str = ""

    @property
    def says_something(self) -> bool:
        """Tell whether the file sets anything about the loss."""
        return replace(self, notes=()) != LossChoice()


def value(document: Document, names: Names, default: Any = None) -> Any:
    """Return the value of the first of several names in a file, else the default.

    A reference to another key, which OmegaConf would resolve, counts as unset. In a script it is a
    variable whose value is only known when the script runs.
    """
    found = document.find(*((names,) if isinstance(names, str) else names))
    is_text = isinstance(found, str) and document.format != "flags"
    reference = is_text and found.startswith("${")
    return default if found is MISSING or reference else found


def number(document: Document, names: Names) -> float | None:
    """Return the first number that a file sets under some names, else None; refuse text."""
    for name in (names,) if isinstance(names, str) else names:
        written = value(document, name)
        if written is None:
            continue
        try:
            if isinstance(written, bool):
                raise ValueError
            return float(written)  # YAML 1.1 reads 1e-4 as text
        except (TypeError, ValueError):
            variable = isinstance(written, str) and VARIABLE.fullmatch(written)
            raise RcdiagError(
                f"{name}: wanted a number, got {written!r}",
                "the script does not say what that is without being run; write the number in its "
                "place"
                if variable
                else "fix the configuration file",
            ) from None
    return None


def loss_by_columns(document: Document, columns: LossColumns) -> LossChoice:
    """Read what a file sets of the loss, from the places that the columns name."""
    loss, refused = _chosen(document, columns.loss)
    aggregation, unknown = _chosen(document, columns.aggregation)
    bounds = {ours: number(document, names) for ours, names in columns.numbers.items()}
    words = {ours: value(document, names) for ours, names in columns.values.items()}
    return LossChoice(
        loss=loss,
        aggregation=aggregation or None,
        scale_factor=number(document, columns.scale_factor),
        own={ours: one for ours, one in {**bounds, **words}.items() if one is not None},
        refused=refused or unknown,
    )


def _chosen(document: Document, columns: Chosen | None) -> tuple[str, str]:
    """Return rcdiag's name of a file's choice, and the reason if rcdiag has none.

    Both are "" if the file chooses nothing.
    """
    chosen = None if columns is None else value(document, columns.at)
    if columns is None or chosen is None:
        return "", ""
    words = {name: name for name in (LOSSES if "*" in columns.same else columns.same)}
    words |= columns.words
    word = str(chosen).lower() if isinstance(chosen, bool) else chosen
    if isinstance(word, str) and word in words:
        return words[word], ""
    if not columns.what:
        return "", ""
    name = columns.at if isinstance(columns.at, str) else columns.at[-1]
    known = ", ".join(words)
    return "", f"{name}: {chosen} is {columns.what} that rcdiag does not compute; it has {known}"
