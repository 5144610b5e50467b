"""Which tokenizer turns the tokens that a result names into text, where one is here."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rcdiag.engines.spec import PolicySpec
from rcdiag.engines.tokenizer import decoder
from rcdiag.errors import RcdiagError, setting
from rcdiag.table.table import Table
from rcdiag.usecases.reading import Decode


def decoder_of(
    model: str | Path | None,
    table: Table,
    specs: Sequence[PolicySpec],
    policies: Sequence[str],
    wanted: bool | None,
) -> Decode | None:
    """Return what turns token ids into text; None without a tokenizer, or where it is not wanted.

    The tokenizer is that of `model`, or of a model of one of `policies`: the model that is about
    to score it, or else the one that the table names. `wanted` True makes a missing one an error;
    None takes one that is here.
    """
    if wanted is False:
        return None
    folders = list(_folders(model, table, specs, policies))
    if wanted:
        if model is None and not folders:
            raise RcdiagError(
                f"{setting('include_text')}: the table names no model folder here whose tokenizer "
                "could be used",
                hint=setting("model", "PATH"),
            )
        return decoder(folders[0] if folders else str(model))
    for folder in folders:
        try:
            return decoder(folder)
        except RcdiagError:
            continue
    return None


def _folders(
    model: str | Path | None, table: Table, specs: Sequence[PolicySpec], policies: Sequence[str]
) -> Iterator[str]:
    """Yield the folders here in which a tokenizer may be, those that the user named first."""
    recorded = table.metadata.get("policies", {})
    named = {name: recorded.get(name, {}).get("model") for name in policies}
    named |= {spec.name: spec.model for spec in specs if spec.name in named}
    for path in (model, *named.values()):
        if not path:
            continue
        # A model of every step or version stands in a folder for each: all have one tokenizer.
        folders = sorted(glob.glob(re.sub(r"\{(step|policy_version)\}", "*", str(path))))
        yield from (folder for folder in folders[:1] if Path(folder).is_dir())
