"""Read the sequences that a result shows once more, whole, with prompt, weights and texts."""

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
from rcdiag.statistics.extremes import rounded, sequence_of
from rcdiag.statistics.pair import PolicyPair, pair_of
from rcdiag.table.parts import score_columns
from rcdiag.table.stream import columns_needed, decode, with_log_probs
from rcdiag.table.table import RowBatch, Table
from rcdiag.table.trajectories import Trajectories, starts_of
from rcdiag.trainers.plan import Plan
from rcdiag.usecases.shown_tokens import gaps, masked_beside, shown_tokens

# Token ids -> their text, one string each.
Decode = Callable[[Sequence[int]], list[str]]

PROMPT_KEPT = 100  # tokens
LETTERS_OF_PROMPT, LETTERS_OF_RESPONSE = 1_000, 2_000
ALTERNATIVES, TOKENS_WITH_ALTERNATIVES = 5, 10
# Bytes of rows that are held while it is found out how much of them a page has room for.
HELD = 64_000_000
# Columns in which dumps hold text, the first that there is.
PROMPT_TEXTS = ("prompt", "prompt_text", "input")
RESPONSE_TEXTS = ("response", "response_text", "completion", "output")


class SequenceReader(Struct, kw_only=True):
    """Reads whole sequences of a table, with prompt, masked tokens and weights.

    `text` allows text: that of the tokenizer `decode_ids`, or else that of the table's columns.
    """

    table: Table
    behavior: str
    target: str
    plan: Plan | None
    decode_ids: Decode | None
    text: bool
    # Rows that were fetched, with all columns that are read, and their numbers.
    held: list[RowBatch] = []
    held_rows: frozenset[int] = frozenset()

    def fetch(self, rows: Sequence[int]) -> None:
        """Read rows from the files, so that `read` need not read their row groups again.

        More than HELD bytes of rows are not kept.
        """
        numbers = np.array(sorted(set(rows)), dtype=np.int64)
        held, size = [], 0
        for batch in self._from_files(numbers):
            held.append(batch)
            size += batch.table.nbytes
            if size > HELD:
                return
        self.held, self.held_rows = held, frozenset(numbers.tolist())

    def read(self, most: Mapping[int, int]) -> dict[int, SequenceTokens]:
        """Return sequences by their rows; `most` says how many tokens of each row may be shown.

        Of one with more tokens the first are shown, and those around the largest |log-ratio|. A
        row without sampled tokens, or without log-probs, is not among them.
        """
        rows = np.array(sorted(most), dtype=np.int64)
        found: dict[int, SequenceTokens] = {}
        for batch in self._held(rows) if self.held_rows >= most.keys() else self._from_files(rows):
            found |= _read(batch, self.behavior, self.target, self.plan, most)
        return {row: _decoded(sequence, self.decode_ids) for row, sequence in found.items()}

    def _held(self, rows: NDArray[np.int64]) -> Iterator[RowBatch]:
        for batch in self.held:
            keep = np.isin(batch.numbers, rows)
            if keep.any():
                yield batch.take(keep)

    def _from_files(self, rows: NDArray[np.int64]) -> Iterator[RowBatch]:
        """Yield rows, with all that is shown of them, from the row groups that hold them."""
        table, policies = self.table, (self.behavior, self.target)
        tops = [name for policy in policies for name in score_columns(policy)[2:4]]
        texts = text_columns(table) if self.text and self.decode_ids is None else []
        needed = columns_needed(table.schema.names, policies, prompts=True, details=True)
        names = [*needed, *(name for name in (*tops, *texts) if name in table.schema.names)]
        for batch in table.batches(names, rows=rows):
            yield with_log_probs(batch, policies)


def text_columns(table: Table) -> list[str]:
    """Return the column with the text of prompts and that with the text of responses, if any."""
    first = [next(filter(table.has_text, names), None) for names in (PROMPT_TEXTS, RESPONSE_TEXTS)]
    return [name for name in first if name is not None]


def _read(
    batch: RowBatch, behavior: str, target: str, plan: Plan | None, most: Mapping[int, int]
) -> dict[int, SequenceTokens]:
    """Return some rows with their shown tokens and their context, by the number of the row.

    `most` says how many tokens of each row may be shown.
    """
    rows = decode(batch, (behavior, target))
    pair = pair_of(rows, behavior, target)
    place = {int(row): index for index, row in enumerate(pair.tokens.row)}
    starts = starts_of(pair.lengths)
    whole: dict[int, slice] = {}  # by the row's number: its tokens, and those of them to show
    shown: dict[int, NDArray[np.int64]] = {}
    for row, at in place.items():
        whole[row] = slice(int(starts[at]), int(starts[at] + pair.lengths[at]))
        shown[row] = shown_tokens(pair.log_ratio[whole[row]], most[row])
    every = [whole[row].start + shown[row] for row in place]
    effects = _effects(pair, plan, np.concatenate([*every, np.zeros(0, np.int64)]))
    ends = np.cumsum([len(some) for some in every])
    read = {}
    for index, row in enumerate(rows.row.tolist()):
        if row not in place:
            continue
        kept = every[place[row]]
        own = slice(int(ends[place[row]]) - len(kept), int(ends[place[row]]))
        ratio, positions = pair.log_ratio[kept], pair.tokens.position[kept]
        context = SequenceContext(
            **_around(rows, index, pair.tokens.position[whole[row]], shown[row]),
            **_plain(batch, index),
            token_weights={name: _weights(effect, own, ratio) for name, effect in effects.items()},
            alternatives=[
                alternative
                for policy in (behavior, target)
                for alternative in _alternatives(batch, index, policy, positions, ratio)
            ],
        )
        read[row] = replace(
            rounded(sequence_of(pair, place[row], whole[row].stop, shown[row])),
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
    """Return the texts that the table itself holds, where its columns were read."""

    def first(names: Sequence[str]) -> str | None:
        known = [name for name in names if name in batch.table.column_names]
        return batch.table.column(known[0])[index].as_py() if known else None

    prompt, response = first(PROMPT_TEXTS), first(RESPONSE_TEXTS)
    return {
        **({"prompt": prompt[-LETTERS_OF_PROMPT:]} if prompt else {}),
        **({"response": response[:LETTERS_OF_RESPONSE]} if response else {}),
    }


def _effects(
    pair: PolicyPair, plan: Plan | None, shown: NDArray[np.int64]
) -> Mapping[str, TokenEffects]:
    """Apply every correction of a plan that does not compare a token with its whole batch.

    The effects are those on the tokens `shown`, by their places.
    """
    if plan is None or not len(pair.lengths):
        return {}
    corrections = {name: one for name, one in plan.corrections.items() if not one.needs_whole_batch}
    rows, tokens = rows_of(pair, dtype=plan.dtype), Tokens.of(pair, plan.dtype)
    with np.errstate(all="ignore"):
        return {
            name: token_effects(one, tokens, rows).at(shown) for name, one in corrections.items()
        }


def _weights(effect: TokenEffects, kept: slice, log_ratio: NDArray[np.float64]) -> TokenWeights:
    """Write the weights of a sequence in short: one for all, or those other than the ratio."""
    flags = np.concatenate([[0], ~effect.kept[kept], [0]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(flags)).reshape(-1, 2)  # first rejected, first kept after it
    rejected = [[int(first), int(end) - 1] for first, end in edges]
    if effect.weights is None:
        return TokenWeights(weight=1.0, rejected=rejected)
    weights = effect.weights[kept]
    if len(weights) and np.isfinite(weights[0]) and (weights == weights[0]).all():
        return TokenWeights(weight=_short(weights[0]), rejected=rejected)
    with np.errstate(over="ignore"):
        others = np.flatnonzero(~np.isclose(weights, np.exp(log_ratio), rtol=1e-5, atol=0.0))
    changed = [[int(place), _short(weights[place])] for place in others]
    return TokenWeights(weight=None, changed=changed, rejected=rejected)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _alternatives(
    batch: RowBatch,
    index: int,
    policy: str,
    positions: NDArray[np.int64],
    log_ratio: NDArray[np.float64],
) -> Iterator[TokenAlternatives]:
    """Yield what a policy had for the tokens with the largest log-ratios, where that is stored."""
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
    """Give the tokens of a sequence and of its context their texts, where a tokenizer is here."""
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
    """Give the examples of bins and their neighbours their texts."""
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
