"""A table that lacks columns is refused once, for all of them, with its columns that may be meant.

What the hint says works when it is followed literally: a column is offered only where it is free,
has a type that is read, and stands for one thing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from rcdiag.errors import RcdiagError, mapping_setting, nearest, setting
from rcdiag.table.schema import COLUMNS, LOG_PROBS, column_setting, column_spec

NEAR = 0.5  # likeness from which on a column is offered
# Names of log-probs in dumps: inference_logprobs, old_per_token_logps, prox_logp, action_log_probs.
LOOKS_LIKE_LOG_PROBS = re.compile(r"log_?probs?|logps?", re.IGNORECASE)
# Words of such names that say whose log-probs they are.
WORDS_OF_POLICY = {
    "rollout": {"rollout", "inference", "sampler", "sampling", "generation", "behavior", "engine"}
    | {"vllm", "sglang"},
    "old": {"old", "train", "trainer", "training", "actor", "prev", "prox", "proximal"},
    "current": {"current", "new"},
    "reference": {"ref", "reference", "teacher", "base"},
}
# Names of other columns in dumps, that do not look like ours.
OTHER_NAMES = {
    "response_ids": ("tokens", "token_ids", "output_ids", "output_tokens", "completion_ids"),
    "prompt_ids": ("prompt_tokens", "input_ids"),
    "group_id": ("group", "uid", "prompt_id", "group_index", "question_id", "problem_id"),
    "response_mask": ("mask", "loss_mask", "completion_mask", "action_mask"),
}


def check_names(renames: Mapping[str, str]) -> None:
    """Refuse a mapping to a name that rcdiag does not read."""
    for name, in_file in renames.items():
        if column_spec(name) is not None:
            continue
        stem = LOOKS_LIKE_LOG_PROBS.sub("", name).strip("_")
        known = [*COLUMNS, "rollout_log_probs", "old_log_probs"]
        guess = f"{stem}_log_probs" if stem and stem != name else nearest(name, known)
        raise RcdiagError(
            f"{column_setting({name: in_file})}: rcdiag reads no column `{name}`",
            hint=(f"did you mean {column_setting({guess: in_file})}? " if guess else "")
            + f"one of {', '.join(COLUMNS)}, POLICY_log_probs, POLICY_entropy",
        )


def check_columns(
    needed: Iterable[str], schema: pa.Schema, renames: Mapping[str, str], file: str
) -> None:
    """Refuse a file without a column that is needed or mapped.

    `schema` has the file's own names, `needed` are canonical ones.
    """
    names = {**{name: name for name in needed}, **renames}
    missing = {name: own for name, own in names.items() if own not in schema.names}
    if not missing:
        return
    meant = meant_columns(missing, schema, renames)
    listed = [f"`{own}`" + ("" if own == name else f" for {name}") for name, own in missing.items()]
    raise RcdiagError(
        f"{file}: no column{'s' if len(missing) > 1 else ''} {', '.join(listed)}; "
        f"found: {', '.join(schema.names)}",
        hint=_hint(list(missing), meant, schema),
    )


def meant_columns(
    missing: Mapping[str, str], schema: pa.Schema, renames: Mapping[str, str], least: float = NEAR
) -> dict[str, str]:
    """Return for canonical names the columns of a file that may be meant, the likeliest first.

    `missing` maps canonical names to the names that were looked for, which the file lacks. A column
    is offered for one name only, and never where it means something else already. `least` is the
    least likeness: from 1 on a column's name says what it is, below it only has like letters.
    """
    taken = {own for own in renames.values() if own in schema.names}
    free = [field for field in schema if column_spec(field.name) is None]
    likeness = {
        (name, field.name): _likeness(name, wanted, field.name)
        for name, wanted in missing.items()
        for field in free
        if field.name not in taken and _reads(name, field.type)
    }
    meant: dict[str, str] = {}
    for (name, own), score in sorted(likeness.items(), key=lambda item: -item[1]):
        if score >= least and name not in meant and own not in meant.values():
            meant[name] = own
    return meant


def _reads(name: str, kind: pa.DataType) -> bool:
    column = column_spec(name)
    return column is not None and column.accepts(kind)


def _likeness(name: str, wanted: str, own: str) -> float:
    """Return how likely a column is meant: from 0 to 1 by its letters, above by what it says."""
    slip = _by_letters(wanted, own)
    if wanted != name and slip >= NEAR:  # the user's own word for the column decides
        return 2.0 + slip
    policy = LOG_PROBS.fullmatch(name)
    if policy is None:
        return 2.0 if own.lower() in OTHER_NAMES.get(name, ()) else _by_letters(name, own)
    if not LOOKS_LIKE_LOG_PROBS.search(own):
        return _by_letters(name, own)
    words = set(re.split(r"[^a-z0-9]+|_", own.lower()))
    mine = {policy["policy"], *WORDS_OF_POLICY.get(policy["policy"], ())}
    if words & mine:
        return 2.0
    others = set().union(*WORDS_OF_POLICY.values()) - mine
    return 0.0 if words & others else 1.0


def _by_letters(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()


def _hint(missing: Sequence[str], meant: Mapping[str, str], schema: pa.Schema) -> str:
    """Write the options that map every missing column, and how to score log-probs instead."""
    texts_only = "response_ids" in missing and not any(
        _reads("response_ids", field.type) for field in schema
    )
    if texts_only:
        return "no column holds token ids (list<int32>): record them, text alone is not enough"
    hint = column_setting({name: meant.get(name, "YOUR_COLUMN") for name in missing})
    if meant:
        hint += f" (the nearest name{'s' if len(meant) > 1 else ''})"
    unknown = [name for name in missing if name not in meant] or missing
    policies = [match["policy"] for name in unknown if (match := LOG_PROBS.fullmatch(name))]
    if policies:
        specs = dict.fromkeys(policies, "hf:float32")
        scored = f"{mapping_setting('policies', specs, '--policy')} with {setting('model', 'PATH')}"
        hint += f"; or score {'it' if len(policies) == 1 else 'them'}: {scored}"
    return hint
