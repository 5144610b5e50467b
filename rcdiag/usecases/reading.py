"""Read the sequences that a result shows again in full, with prompt, weights and texts."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.corrections.apply import TokenEffects, token_effects
from rcdiag.corrections.arithmetic import Tokens
from rcdiag.corrections.sequences import rows_of
from rcdiag.engines.spec import PolicySpec
from rcdiag.engines.tokenizer import decoder
from rcdiag.errors import RcdiagError, setting
from rcdiag.results import (
    BinExamples,
    SequenceContext,
    SequenceTokens,
    TokenAlternatives,
    TokenWeights,
)
from rcdiag.statistics.extremes import SequenceOfPair
from rcdiag.statistics.pair import PolicyPair, pair_of
from rcdiag.table.schema import score_columns
from rcdiag.table.stream import columns_needed, decode
from rcdiag.table.table import RowBatch, Table
from rcdiag.table.trajectories import Trajectories, starts_of
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.shown_tokens import gaps, masked_beside, shown_tokens

# Token ids -> their text, one string each.
Decode = Callable[[Sequence[int]], list[str]]

PROMPT_KEPT = 100  # last tokens of a prompt that are kept
LETTERS_OF_PROMPT, LETTERS_OF_RESPONSE = 1_000, 2_000
ALTERNATIVES, TOKENS_WITH_ALTERNATIVES = 5, 10
# Columns in which dumps hold text; the first one that a table has is read.
PROMPT_TEXTS = ("prompt", "prompt_text", "input")
RESPONSE_TEXTS = ("response", "response_text", "completion", "output")


class SequenceReader(Struct, frozen=True, kw_only=True):
    """Reads whole sequences of a table, with prompt, masked tokens and weights.

    With `text` they have their text: by the tokenizer `decode_ids`, or without one from the table's
    columns.
    """

    table: Table
    behavior: str
    target: str
    plan: Plan | None
    decode_ids: Decode | None
    text: bool

    def read(self, most: Mapping[int, int]) -> dict[int, SequenceTokens]:
        """Return sequences by row; `most` maps each row to the number of tokens it may show.

        Of a longer sequence the first tokens are shown, and those around the largest |log-ratio|.
        A row without sampled tokens, or without log-probs, is left out.
        """
        table, policies = self.table, (self.behavior, self.target)
        tops = [name for policy in policies for name in score_columns(policy)[2:4]]
        texts = text_columns(table) if self.text and self.decode_ids is None else []
        needed = columns_needed(table.schema.names, policies, prompts=True, details=True)
        names = [*needed, *(name for name in (*tops, *texts) if name in table.schema.names)]
        found: dict[int, SequenceTokens] = {}
        for batch in table.batches(names, rows=np.array(sorted(most), dtype=np.int64)):
            batch = batch.with_log_probs(policies)
            found |= _read(batch, self.behavior, self.target, self.plan, most)
        return {row: _decoded(sequence, self.decode_ids) for row, sequence in found.items()}


def text_columns(table: Table) -> list[str]:
    """Return the columns with the texts of prompts and of responses, those that the table has."""
    first = [next(filter(table.has_text, names), None) for names in (PROMPT_TEXTS, RESPONSE_TEXTS)]
    return [name for name in first if name is not None]


def _read(
    batch: RowBatch, behavior: str, target: str, plan: Plan | None, most: Mapping[int, int]
) -> dict[int, SequenceTokens]:
    """Return some rows with their shown tokens and their context, by row number.

    `most` maps each row to the number of tokens it may show.
    """
    rows = decode(batch, (behavior, target))
    pair = pair_of(rows, behavior, target)
    place = {int(row): index for index, row in enumerate(pair.tokens.row)}
    starts = starts_of(pair.lengths)
    whole: dict[int, slice] = {}  # row number -> all of its tokens in `pair`
    shown: dict[int, NDArray[np.int64]] = {}  # row number -> its shown tokens, counted in the row
    for row, at in place.items():
        whole[row] = slice(int(starts[at]), int(starts[at] + pair.lengths[at]))
        shown[row] = shown_tokens(pair.log_ratio[whole[row]], most[row])
    every = [whole[row].start + shown[row] for row in place]
    ends = np.cumsum([len(some) for some in every]).tolist()
    own = [slice(end - len(some), end) for end, some in zip(ends, every, strict=True)]
    weights = _weights(pair, plan, np.concatenate([*every, np.zeros(0, np.int64)]), own)
    read = {}
    for index, row in enumerate(rows.row.tolist()):
        if row not in place:
            continue
        kept = every[place[row]]
        ratio, positions = pair.log_ratio[kept], pair.tokens.position[kept]
        context = SequenceContext(
            **_around(rows, index, pair.tokens.position[whole[row]], shown[row]),
            **_plain(batch, index),
            token_weights={name: some[place[row]] for name, some in weights.items()},
            alternatives=[
                alternative
                for policy in (behavior, target)
                for alternative in _alternatives(batch, index, policy, positions, ratio)
            ],
        )
        read[row] = replace(
            SequenceOfPair.of(pair, place[row], whole[row].stop, shown[row]).rounded(),
            gaps=gaps(pair.log_ratio[whole[row]], shown[row]) or None,
            context=context,
        )
    return read


def _around(
    rows: Trajectories, index: int, positions: NDArray[np.int64], shown: NDArray[np.int64]
) -> dict[str, Any]:
    """Return the prompt of a row, and the masked tokens next to the shown ones."""
    response = rows.response_ids
    mask = rows.mask[response.offsets[index] : response.offsets[index + 1]]
    masked = masked_beside(mask, positions, shown)
    prompt = None if rows.prompt_ids is None else rows.prompt_ids.row(index)
    return {
        "prompt_length": None if prompt is None else len(prompt),
        "prompt_ids": [] if prompt is None else prompt[-PROMPT_KEPT:].tolist(),
        "masked_positions": masked.tolist(),
        "masked_ids": response.row(index)[masked].tolist(),
    }


def _plain(batch: RowBatch, index: int) -> dict[str, Any]:
    """Return the texts of a row from the table's own text columns, if these were read."""

    def first(names: Sequence[str]) -> str | None:
        known = [name for name in names if name in batch.table.column_names]
        return batch.table.column(known[0])[index].as_py() if known else None

    prompt, response = first(PROMPT_TEXTS), first(RESPONSE_TEXTS)
    return {
        **({"prompt": prompt[-LETTERS_OF_PROMPT:]} if prompt else {}),
        **({"response": response[:LETTERS_OF_RESPONSE]} if response else {}),
    }


def _weights(
    pair: PolicyPair, plan: Plan | None, shown: NDArray[np.int64], rows: Sequence[slice]
) -> dict[str, list[TokenWeights]]:
    """Return the weights that each correction gives, row by row, by the correction's name.

    A correction that needs the whole batch is left out.

    Args:
        pair: the policies.
        plan: the corrections.
        shown: the tokens, as indices in `pair`.
        rows: the place of each row's tokens in `shown`.
    """
    if plan is None or not len(pair.lengths):
        return {}
    corrections = {name: one for name, one in plan.corrections.items() if not one.needs_whole_batch}
    sequences, tokens = rows_of(pair, dtype=plan.dtype), Tokens.of(pair, plan.dtype)
    with np.errstate(all="ignore"):
        ratio = np.exp(pair.log_ratio[shown])
        return {
            name: _compact(token_effects(one, tokens, sequences).at(shown), ratio, rows)
            for name, one in corrections.items()
        }


def _compact(
    effect: TokenEffects, ratio: NDArray[np.float64], rows: Sequence[slice]
) -> list[TokenWeights]:
    """Write each row's weights: one number if all are equal, else those unequal to the ratio."""
    rejected = [_runs(~effect.kept[own]) for own in rows]
    if effect.weights is None:
        return [TokenWeights(weight=1.0, rejected=some) for some in rejected]
    unlike = ~np.isclose(effect.weights, ratio, rtol=1e-5, atol=0.0)
    return [
        TokenWeights(**_of_row(effect.weights[own], unlike[own]), rejected=some)
        for own, some in zip(rows, rejected, strict=True)
    ]


def _runs(rejected: NDArray[np.bool_]) -> list[list[int]]:
    """Return the first and the last token of each run of rejected tokens."""
    if not rejected.any():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[False], rejected, [False]]))).reshape(-1, 2)
    return [[first, after - 1] for first, after in edges.tolist()]


def _of_row(weights: NDArray[np.floating], unlike: NDArray[np.bool_]) -> dict[str, Any]:
    if len(weights) and np.isfinite(weights[0]) and (weights == weights[0]).all():
        return {"weight": _short(weights[0])}
    places = np.flatnonzero(unlike).tolist()
    return {"weight": None, "changed": [[place, _short(weights[place])] for place in places]}


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _alternatives(
    batch: RowBatch,
    index: int,
    policy: str,
    positions: NDArray[np.int64],
    log_ratio: NDArray[np.float64],
) -> Iterator[TokenAlternatives]:
    """Yield a policy's stored top tokens at the places with the largest log-ratios."""
    ids_name, log_probs_name = score_columns(policy)[2:4]
    if not {ids_name, log_probs_name} <= set(batch.table.column_names):
        return
    ids = batch.table.column(ids_name)[index].as_py() or []
    log_probs = batch.table.column(log_probs_name)[index].as_py() or []
    worst = np.argsort(-np.abs(log_ratio), kind="stable")[:TOKENS_WITH_ALTERNATIVES]
    for place in sorted(worst.tolist()):
        at = int(positions[place])
        if at < len(ids) and at < len(log_probs) and ids[at]:
            yield TokenAlternatives(
                place=place,
                likely_under=policy,
                token_ids=list(ids[at][:ALTERNATIVES]),
                token_log_probs=[round(float(value), 5) for value in log_probs[at][:ALTERNATIVES]],
            )


def _decoded(sequence: SequenceTokens, decode_ids: Decode | None) -> SequenceTokens:
    """Add the texts of the tokens of a sequence and of its context, if there is a tokenizer."""
    context = sequence.context
    if decode_ids is None or context is None:
        return sequence
    return replace(
        sequence,
        texts=decode_ids(sequence.token_ids),
        context=replace(
            context,
            prompt_texts=decode_ids(context.prompt_ids),
            masked_texts=decode_ids(context.masked_ids),
            alternatives=[
                replace(one, texts=decode_ids(one.token_ids)) for one in context.alternatives
            ],
        ),
    )


def decoded_examples(examples: BinExamples, decode_ids: Decode) -> BinExamples:
    """Add the texts of the example tokens of bins and of their neighbours."""
    ids = {
        *examples.token_id,
        *(one for some in (*examples.before, *examples.after) for one in some),
    }
    ordered = sorted(ids)
    text = dict(zip(ordered, decode_ids(ordered), strict=True))

    def joined(some: Sequence[int]) -> str:
        return "".join(text[one] for one in some)

    tokens = zip(examples.before, examples.token_id, examples.after, strict=True)
    texts = [[joined(before), text[one], joined(after)] for before, one, after in tokens]
    return replace(examples, texts=texts)


def decoder_of(
    model: str | Path | None,
    table: Table,
    specs: Sequence[PolicySpec],
    policies: Sequence[str],
    wanted: bool | None,
) -> Decode | None:
    """Return the function from token ids to texts; None without a tokenizer, or if not wanted.

    The tokenizer is that of `model`, or of the model of one of `policies`: the one that will score
    it, or else the one that the table names. With `wanted` True a missing tokenizer is an error;
    with None it is used only if it is on this machine.
    """
    if wanted is False:
        return None
    folders = list(_folders(model, table, specs, policies))
    if wanted:
        if model is None and not folders:
            raise RcdiagError(
                f"{setting('include_text')}: the table names no model folder on this machine whose "
                "tokenizer could be used",
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
    """Yield folders on this machine that may hold a tokenizer, those that the user named first."""
    recorded = table.metadata.get("policies", {})
    named = {name: recorded.get(name, {}).get("model") for name in policies}
    named |= {spec.name: spec.model for spec in specs if spec.name in named}
    for path in (model, *named.values()):
        if not path:
            continue
        # With one folder for each step or version, all of them have the same tokenizer.
        folders = sorted(glob.glob(re.sub(r"\{(step|policy_version)\}", "*", str(path))))
        yield from (folder for folder in folders[:1] if Path(folder).is_dir())
