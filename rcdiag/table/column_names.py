"""The names that other trainers and engines give to the table's columns (from `names.toml`)."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.table.schema import column_spec

NAMES = Path(__file__).with_name("names.toml")

# Names of log-probs in dumps: inference_logprobs, old_per_token_logps, prox_logp, action_log_probs.
LOOKS_LIKE_LOG_PROBS = re.compile(r"log_?probs?|logps?", re.IGNORECASE)
# Other spellings of canonical names: rollout_logprobs, old_logps, old_per_token_logps.
SPELLED = re.compile(r"(?P<policy>rollout|old|current)_(per_token_)?(log_?probs?|logps?)")
# Separators between an object and its field, or between a group of columns and a column.
SEPARATORS = re.compile(r"[./:]+")
# Names of groups of columns that say nothing about their content.
CONTAINERS = {"batch", "columns", "data", "fields", "item", "record", "row", "sample", "tensors"}
# Word boundaries in rolloutLogProbs and in ROLLOUTLogProbs.
WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class KnownName(Struct, frozen=True, kw_only=True):
    """A name that other programs give to a column of the trajectory table."""

    column: str  # canonical name
    name: str
    programs: tuple[str, ...] = ()  # which write it; empty for a common word in users' own loops
    pages: tuple[str, ...] = ()  # URLs of files and pages that show it
    whole: bool = False  # in some programs it holds prompt and response together
    alone: bool = False  # valid only if no other column may hold log-probs
    beside: tuple[str, ...] = ()  # valid only if one of these columns exists too
    doubt: str = ""  # why it is never used automatically; empty if it may be

    @property
    def users(self) -> str:
        """Return the programs that write the name, separated by commas."""
        return ", ".join(self.programs)


@functools.cache
def known_names() -> dict[str, tuple[KnownName, ...]]:
    """Return the known names of other programs, by canonical column."""
    tables = tomllib.loads(NAMES.read_text("utf-8"))
    sources = tables.pop("source")
    known: dict[str, tuple[KnownName, ...]] = {}
    for column, names in tables.items():
        made = []
        for name, entry in names.items():
            facts = dict(entry) if isinstance(entry, dict) else {"by": entry}
            by = facts.pop("by")
            shown = [sources[source] for source in by if sources[source][1]]
            made.append(
                KnownName(
                    column=column,
                    name=name,
                    programs=tuple(dict.fromkeys(program for program, _ in shown)),
                    pages=tuple(page for _, page in shown),
                    beside=tuple(facts.pop("beside", ())),
                    **facts,
                )
            )
        known[column] = tuple(made)
    return known


def names_for(column: str) -> dict[str, KnownName]:
    """Return the known names for a canonical column, by name."""
    return {known.name: known for known in known_names().get(column, ())}


def spelled(name: str) -> str | None:
    """Return the canonical log-prob column that a name spells differently; None if it is none.

    For example, `old_logps` is another spelling of `old_log_probs`.
    """
    match = SPELLED.fullmatch(name)
    return f"{match['policy']}_log_probs" if match else None


@functools.lru_cache(maxsize=4096)
def meanings_of(name: str) -> Mapping[str, KnownName]:
    """Return the canonical columns that another name may mean, each with its `KnownName`."""
    form = known_form(name)
    known = {
        column: replace(found, name=name)
        for column in known_names()
        if (found := names_for(column).get(form)) is not None
    }
    own = spelled(form) or (form if form != name and column_spec(form) else None)
    return {own: KnownName(column=own, name=name), **known} if own else known


@functools.lru_cache(maxsize=4096)
def known_form(name: str) -> str:
    """Return the known form of a differently spelled name; any other name unchanged.

    For example, `response.logprobs` (a field of an object) becomes `response_logprobs`,
    `data.old_logps` becomes `old_logps`, and `rolloutLogProbs` becomes `rollout_log_probs`.
    """
    if _is_known(name):
        return name
    # To lower case with underscores: `oldLogProbs` becomes `old_log_probs`.
    words = [WORDS.sub("_", part.replace("IDs", "Ids")) for part in SEPARATORS.split(name)]
    parts = [re.sub(r"[\s-]+", "_", part).lower() for part in words]
    while len(parts) > 1 and parts[0] in CONTAINERS:
        parts.pop(0)
    return next((form for form in ("_".join(parts), parts[-1]) if _is_known(form)), name)


def _is_known(form: str) -> bool:
    of_programs = (known.name for names in known_names().values() for known in names)
    return form in of_programs or spelled(form) is not None or column_spec(form) is not None
