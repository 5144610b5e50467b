"""Refuse a table that lacks columns: one error for all of them, with the columns that may be meant.

The hint must work when it is followed literally, so a column is proposed only if it has no meaning
yet, has a readable type, and is proposed for one canonical column only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from rcdiag.errors import RcdiagError, mapping_setting, nearest, setting
from rcdiag.table.column_names import LOOKS_LIKE_LOG_PROBS, names_for
from rcdiag.table.naming import Naming
from rcdiag.table.schema import COLUMNS, LOG_PROBS, column_setting, column_spec

NEAR = 0.5  # similarity (see `_likeness`) from which on a column is proposed
SAYS_LOG_PROBS = 1.0  # similarity of a column whose name says log-probs but not of which policy
# Words in names of log-prob columns that identify the policy.
WORDS_OF_POLICY = {
    "rollout": {"rollout", "inference", "sampler", "sampling", "generation", "behavior", "engine"}
    | {"vllm", "sglang"},
    "old": {"old", "train", "trainer", "training", "actor", "prev", "prox", "proximal"},
    "current": {"current", "new"},
    "reference": {"ref", "reference", "teacher", "base"},
}
# The naming of a file in which nothing is renamed.
AS_IT_IS = Naming()


def check_names(
    renames: Mapping[str, str], schema: pa.Schema | None = None, file: str = ""
) -> None:
    """Refuse a mapping to a name that rcdiag does not know, and say which side of it is wrong.

    `renames` maps canonical names to names in the file; an empty value means that no other column
    is read under that name. `schema` has the file's columns, if known. A right side that the file
    lacks is reported by `check_columns`, together with all other missing columns.
    """
    names = () if schema is None else schema.names
    where = f"{file}: " if file else ""
    for name, own in renames.items():
        if column_spec(name) is None:
            _refuse_left_side(name, own, names, where)
        if not own and name in names:
            raise RcdiagError(
                f"{where}{column_setting({name: own})}, but the file has a column `{name}`",
                hint="an empty right side only keeps other columns from being read under that "
                f"name; drop or rename `{name}` in the file",
            )


def _refuse_left_side(name: str, own: str, names: Sequence[str], where: str) -> None:
    """Raise the error for a mapping whose left side is not a canonical column."""
    mapping = f"{where}{column_setting({name: own})}"
    if column_spec(own) is not None and name in names:
        raise RcdiagError(
            f"{mapping}: the two sides are swapped: `{own}` is rcdiag's name and belongs on the "
            f"left, `{name}` is a column of the file",
            hint=column_setting({own: name}),
        )
    stem = LOOKS_LIKE_LOG_PROBS.sub("", name).strip("_")
    known = [*COLUMNS, "rollout_log_probs", "old_log_probs"]
    guess = f"{stem}_log_probs" if stem and stem != name else nearest(name, known)
    also, right = "", own
    if own and names and own not in names:
        right = nearest(own, names) or "YOUR_COLUMN"
        also = f"; nor is `{own}`, the right side, a column of the file (found: {', '.join(names)})"
    raise RcdiagError(
        f"{mapping}: rcdiag reads no column `{name}`, the left side{also}",
        hint=(f"did you mean {column_setting({guess: right})}? " if guess else "")
        + f"one of {', '.join(COLUMNS)}, POLICY_log_probs, POLICY_entropy",
    )


def check_columns(
    needed: Iterable[str],
    schema: pa.Schema,
    renames: Mapping[str, str],
    file: str,
    naming: Naming = AS_IT_IS,
) -> None:
    """Refuse a file that lacks a needed or mapped column, and name all that are missing.

    `schema` has the file's own names, `needed` are canonical names. `naming` holds the columns that
    are read under other names, and those that may be meant.
    """
    names = {**{name: name for name in needed}, **renames}
    missing = {name: own for name, own in names.items() if own not in schema.names}
    if not missing:
        return
    meant = meant_columns(missing, schema, renames, naming)
    listed = []
    for name, own in missing.items():
        # The columns that may be meant, and why they are not used.
        doubts = [f"`{doubt.column}`: {doubt.why}" for doubt in naming.doubts.get(name, ())]
        if own != name:
            listed.append(f"`{own}`, the right side of {name}={own}")
        else:
            listed.append(f"`{name}`" + (f" ({'; '.join(doubts)})" if doubts else ""))
    # Columns that are not the response tokens by their first rows.
    refuted = [doubt.column for doubt in naming.doubts.get("response_ids", ()) if doubt.refuted]
    hint = _hint(list(missing), meant, schema, refuted)
    if "response_ids" in missing and refuted:
        hint += (
            f"; if `{refuted[0]}` holds prompt and response, write the last tokens of each list, "
            "as many as there are log-probs, as `response_ids`, and the tokens before them as "
            "`prompt_ids`"
        )
    taken = f"; read: {naming.sentence()}" if naming.taken else ""
    raise RcdiagError(
        f"{file}: no column{'s' if len(missing) > 1 else ''} {', '.join(listed)}; "
        f"found: {', '.join(schema.names)}{taken}",
        hint=hint,
    )


def meant_columns(
    missing: Mapping[str, str],
    schema: pa.Schema,
    renames: Mapping[str, str],
    naming: Naming = AS_IT_IS,
    least: float = NEAR,
) -> dict[str, str]:
    """Propose for each canonical name the column of a file that is most likely meant.

    `missing` maps canonical names to the names that were looked for and are not in the file. A
    column is proposed for one name only, and never if it already has a meaning or if its first rows
    prove that it is something else. `least` is the least similarity: from 1 on the name has the
    meaning, below 1 it is only spelled similarly.
    """
    refuted = {
        (name, doubt.column)
        for name, doubts in naming.doubts.items()
        for doubt in doubts
        if doubt.refuted
    }
    taken = {own for own in renames.values() if own in schema.names}
    free = [field for field in schema if column_spec(field.name) is None]
    likeness = {
        (name, field.name): _likeness(name, wanted, field.name)
        for name, wanted in missing.items()
        for field in free
        if field.name not in taken
        and _reads(name, field.type)
        and (name, field.name) not in refuted
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
    """Return how likely a column is meant: 0 to 1 by spelling, above 1 by meaning of its name."""
    slip = _by_letters(wanted, own)
    if wanted != name and slip >= NEAR:  # a name that the user wrote comes first
        return 2.0 + slip
    policy = LOG_PROBS.fullmatch(name)
    if policy is None:
        return 2.0 if own.lower() in names_for(name) else _by_letters(name, own)
    if own in names_for(name) and not names_for(name)[own].alone:
        return 3.0
    if not LOOKS_LIKE_LOG_PROBS.search(own):
        # `rollout_probs` is spelled similarly, but holds no log-probs.
        return 0.0 if "prob" in own.lower() else _by_letters(name, own)
    words = set(re.split(r"[^a-z0-9]+|_", own.lower()))
    mine = {policy["policy"], *WORDS_OF_POLICY.get(policy["policy"], ())}
    if words & mine:
        return 2.0
    others = set().union(*WORDS_OF_POLICY.values()) - mine
    return 0.0 if words & others else SAYS_LOG_PROBS


def _by_letters(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()


def _hint(
    missing: Sequence[str], meant: Mapping[str, str], schema: pa.Schema, refuted: Sequence[str]
) -> str:
    """Return the options that map each missing column, and how to score log-probs instead."""
    texts_only = "response_ids" in missing and not any(
        _reads("response_ids", field.type) for field in schema
    )
    if texts_only:
        return "no column holds token ids (list<int32>): record them, text alone is not enough"
    tokens = [
        field.name
        for field in schema
        if _reads("response_ids", field.type) and field.name not in refuted
    ]
    if "response_ids" in missing and len(tokens) == 1:  # no other column can hold the tokens
        meant = {"response_ids": tokens[0], **meant}
    hint = column_setting({name: meant.get(name, "YOUR_COLUMN") for name in missing})
    if meant:
        hint += f" (the most similar column{'s' if len(meant) > 1 else ''})"
    unknown = [name for name in missing if name not in meant] or missing
    policies = [match["policy"] for name in unknown if (match := LOG_PROBS.fullmatch(name))]
    if policies:
        scored = setting("model", "PATH")  # scores `rollout` with vLLM and `old` with transformers
        if not {"rollout", "old"}.issuperset(policies):
            specs = dict.fromkeys(policies, "hf:float32")
            scored = f"{mapping_setting('policies', specs, '--policy')} with {scored}"
        hint += f"; or score {'it' if len(policies) == 1 else 'them'}: {scored}"
    return hint
