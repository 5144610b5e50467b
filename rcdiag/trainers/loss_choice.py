"""A trainer's configuration file says which policy loss an update takes, and with which bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.errors import RcdiagError
from rcdiag.trainers.settings_document import MISSING, Document
from rcdiag.trainers.shell_variables import VARIABLE

Names = str | tuple[str, ...]  # dotted names under which a trainer writes a setting


class LossChoice(Struct, frozen=True, kw_only=True):
    """What a file says of the policy loss, in rcdiag's names; what it leaves out is not here."""

    loss: str = ""  # "" where the file leaves it to the trainer
    aggregation: str | None = None
    denominator: str | None = None
    constant: float | None = None
    scale_factor: float | None = None
    own: Mapping[str, Any] = field(default_factory=dict)  # settings of losses
    notes: tuple[str, ...] = ()  # what in the file has no effect on the loss
    # Why rcdiag computes no loss for this file; another one can still be named by hand.
    refused: str = ""

    @property
    def says_something(self) -> bool:
        """Tell whether the file sets anything of the loss."""
        return replace(self, notes=()) != LossChoice()


def value(document: Document, names: Names, default: Any = None) -> Any:
    """Return what a file writes under the first of some names, else the default.

    A reference to another key, which OmegaConf would resolve, says nothing by itself. In a script
    it is a variable, whose value only a run would tell.
    """
    found = document.find(*((names,) if isinstance(names, str) else names))
    is_text = isinstance(found, str) and document.format != "flags"
    reference = is_text and found.startswith("${")
    return default if found is MISSING or reference else found


def number(document: Document, names: Names) -> float | None:
    """Return a number of the file; None where it is null or not there. Text is refused."""
    written = value(document, names)
    if written is None:
        return None
    try:
        if isinstance(written, bool):
            raise ValueError
        return float(written)  # 1e-4 is text to YAML 1.1
    except (TypeError, ValueError):
        name = names if isinstance(names, str) else names[0]
        variable = isinstance(written, str) and VARIABLE.fullmatch(written)
        raise RcdiagError(
            f"{name}: wanted a number, got {written!r}",
            "the script does not say what that is without being run; write the number in its place"
            if variable
            else "fix the configuration file",
        ) from None


def numbers(document: Document, **places: Names) -> dict[str, float]:
    """Return the numbers that a file sets, by rcdiag's names of settings."""
    found = {ours: number(document, names) for ours, names in places.items()}
    return {ours: one for ours, one in found.items() if one is not None}


def word(document: Document, names: Names, words: Mapping[Any, str], what: str) -> tuple[str, str]:
    """Return rcdiag's name of what a file chooses, and why there is none.

    `words` are the trainer's words with rcdiag's names. Both are "" where the file chooses nothing.
    """
    chosen = value(document, names)
    if chosen is None:
        return "", ""
    if chosen in words:
        return words[chosen], ""
    name = names if isinstance(names, str) else names[0]
    known = ", ".join(map(str, words))
    return "", f"{name}: {chosen} is {what} that rcdiag does not compute; it has {known}"


ReadLoss = Callable[[Document], LossChoice]


def nothing(document: Document) -> LossChoice:
    """Read nothing: the trainer's configuration says nothing of its loss."""
    return LossChoice()
