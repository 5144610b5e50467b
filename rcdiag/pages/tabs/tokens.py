"""The tab Tokens: where the mismatch sits, and the tokens and sequences that carry it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from rcdiag.formats import number, shortened
from rcdiag.pages.blocks import (
    Block,
    Cell,
    Column,
    Figures,
    Fold,
    Part,
    Row,
    Section,
    Tab,
    Table,
    Words,
    amount,
    code,
    count,
    filled,
    metric,
    share,
    text,
)
from rcdiag.pages.command_again import with_sequence
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.score.exceedance import SMALLEST, any_beyond
from rcdiag.pages.score.profiles import FIGURES as PROFILES
from rcdiag.pages.tabs.corrections.treatments import recommended
from rcdiag.pages.tabs.diagnosis import BY_STEP
from rcdiag.results import ScoreResult, SequenceTokens

LONGEST = 60  # letters of a name or a token in a table
MOST_PRINTED = 3  # texts of sequences on paper, and without a script
PROFILE_NAMES = tuple(spec.name for spec in PROFILES)


def tab(results: DumpResults) -> Tab | None:
    """Fill the tab; None where no pair was scored."""
    score = results.score
    if score is None or not score.target:
        return None
    chosen = recommended(results)
    preset = first_preset(score, () if chosen is None else chosen.names)
    sections = [
        _where(score),
        _profile(score),
        _sequences(score, preset),
        _tokens(score),
        _ids(score),
    ]
    filled = [section for section in sections if section is not None]
    if not filled:
        return None
    return Tab(name="tokens", title="Tokens", heading="Where the mismatch sits", sections=filled)


def _where(result: ScoreResult) -> Section | None:
    others = [f for f in figures_of(result) if f.name not in (*PROFILE_NAMES, *BY_STEP)]
    words = [Words(text=text, soft=True) for text in (_left_out(result), _agree(result)) if text]
    if not others:
        return None
    return Section(title="How many tokens, and how far", blocks=[*words, Figures(items=others)])


def _left_out(result: ScoreResult) -> str:
    """Say how many rows this tab is about, where some have no valid log-probs."""
    if not result.rows_left_out:
        return ""
    left = result.num_sequences - result.rows_left_out
    return (
        f"This tab is of the {left:,} of {result.num_sequences:,} responses whose log-probs are "
        "neither NaN nor infinite nor positive."
    )


def _agree(result: ScoreResult) -> str:
    """Say that all tokens agree, where the figure of those that differ would be empty."""
    if any_beyond(result) or "log_ratio_histogram" not in result.figures:
        return ""
    return f"No token is off by more than {number(SMALLEST)} nats."


def _profile(result: ScoreResult) -> Section | None:
    figures = figures_of(result, PROFILE_NAMES)
    if not figures:
        return None
    return Section(
        title="What it depends on", blocks=[Figures(items=figures, picker="Mismatch by")]
    )


def _sequences(result: ScoreResult, preset: str) -> Section | None:
    """Fill the reader; `preset` is the correction whose weights it shows first."""
    sequences = result.readable_sequences
    if not sequences:
        return None
    listed = [
        (sequence, why)
        for why, some in (
            ("one of the worst", result.worst_sequences),
            ("asked for", result.named_sequences),
            ("drawn at random", result.drawn_sequences),
        )
        for sequence in some
    ]
    columns = filled(SEQUENCE_COLUMNS, listed)
    table = Table(
        name="sequences",
        label="Sequences of the page",
        columns=[column for column, _ in columns],
        rows=[
            Row(cells=[cell(item) for _, cell in columns], key=str(item[0].row)) for item in listed
        ],
        screen=len(sequences) > MOST_PRINTED,
    )
    reader = Part(name="transcript", data={"preset": preset, "more": with_sequence(result)})
    fold = Fold(label=f"These {len(table.rows)} sequences as a table", blocks=[table])
    blocks: list[Block] = [Words(text=_held(result), soft=True), reader, fold]
    texts = [sequence for sequence in result.worst_sequences if sequence.texts]
    if texts:
        printed = [{"row": one.row, "pieces": pieces(one)} for one in texts[:MOST_PRINTED]]
        blocks.append(Part(name="texts", data=printed))
    return Section(title="Sequences, token by token", blocks=blocks, name="transcripts")


def _held(result: ScoreResult) -> str:
    """Say which sequences are stored in the page, and how much of each."""
    worst, named, drawn = (
        len(some)
        for some in (result.worst_sequences, result.named_sequences, result.drawn_sequences)
    )
    parts = [f"the {worst} with the largest |sum of log-ratios|"]
    parts += [f"{named} asked for"] if named else []
    parts += [f"{drawn} drawn at random"] if drawn else []
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else parts[0]
    sequences = result.readable_sequences
    held = f"The page holds {listed}, of {result.num_sequences:,} sequences."
    if len(sequences) == result.num_sequences:
        held = "The page holds all sequences of the table."
    stored = sum(len(sequence.log_ratio) for sequence in sequences)
    tokens = sum(sequence.num_tokens for sequence in sequences)
    if stored == tokens:
        return held
    return (
        f"{held} Of their {tokens:,} tokens {stored:,} are here: of long ones the first, and those "
        "around the largest |log-ratio|."
    )


def pieces(sequence: SequenceTokens) -> list[tuple[str, str]]:
    """Return the text of a sequence in pieces of one colour: class of the colour, and text."""
    gaps = {int(place): int(tokens) for place, tokens, _ in sequence.gaps or []}
    rest = sequence.num_tokens - len(sequence.log_ratio)
    if sequence.gaps is None and rest:  # documents of earlier versions hold the first tokens
        gaps = {len(sequence.log_ratio): rest}
    made: list[tuple[str, str]] = []
    for place in range(len(sequence.log_ratio) + 1):
        if place in gaps:
            made.append(("cut", f" … ({gaps[place]:,} tokens) … "))
        if place < len(sequence.log_ratio) and sequence.texts:
            made.append((shade(sequence.log_ratio[place]), sequence.texts[place]))
    runs = groupby(made, key=lambda piece: piece[0])
    return [(colour, "".join(text for _, text in run)) for colour, run in runs]


def shade(log_ratio: float) -> str:
    """Return the colour class of a token: its sign, and its size in four steps."""
    size = sum(abs(log_ratio) > bound for bound in (0.01, 0.1, 0.5, 2.0))
    return f"{'up' if log_ratio > 0 else 'down'}{size}" if size else ""


def first_preset(result: ScoreResult, wanted: Sequence[str]) -> str:
    """Return the recommended preset if it has weights, or the first that has; empty without any."""
    weighed = [name for name, one in result.corrections.items() if one.weight_sum is not None]
    return next((name for name in (*wanted, *weighed) if name in weighed), "")


def largest(log_ratio: list[float]) -> float:
    """Return the value that is farthest from 0."""
    return max(log_ratio, key=lambda value: abs(value) if value == value else -1.0)


def _largest_of(sequence: SequenceTokens) -> float | None:
    """Return the largest log-ratio of a sequence; None of one that is cut to its first tokens."""
    whole = len(sequence.log_ratio) >= sequence.num_tokens or sequence.gaps is not None
    return largest(sequence.log_ratio) if whole and sequence.log_ratio else None


def _sample(sequence: SequenceTokens) -> str:
    return "" if sequence.sample_id is None else shortened(str(sequence.sample_id), LONGEST)


# What the table of sequences says of each, and of why it is here.
SEQUENCE_COLUMNS: tuple[tuple[Column, Callable[[tuple[SequenceTokens, str]], Cell]], ...] = (
    (Column(head="Row", numbers=True), lambda item: count(item[0].row)),
    (Column(head="Here as"), lambda item: text(item[1])),
    (Column(head="Sample"), lambda item: text(_sample(item[0]))),
    (Column(head="Step", numbers=True), lambda item: count(item[0].step)),
    (Column(head="Reward", numbers=True), lambda item: amount(item[0].reward)),
    (Column(head="Tokens", numbers=True), lambda item: count(item[0].num_tokens)),
    (
        Column(head="Sum of log-ratios (nats)", numbers=True),
        lambda item: amount(item[0].log_ratio_sum),
    ),
    (
        Column(head="Largest token (nats)", numbers=True),
        lambda item: amount(_largest_of(item[0])),
    ),
)


def _tokens(result: ScoreResult) -> Section | None:
    if not result.worst_tokens:
        return None
    texts = any(token.get("text") is not None for token in result.worst_tokens)
    table = Table(
        name="worst-tokens",
        label="Tokens with the largest log-ratios",
        columns=[
            Column(head="Row", numbers=True),
            Column(head="Position", numbers=True),
            Column(head="Token id", numbers=True),
            *([Column(head="Text")] if texts else []),
            Column(head=f"Log-prob, {result.behavior}", numbers=True),
            Column(head=f"Log-prob, {result.target}", numbers=True),
            Column(head="Log-ratio", numbers=True),
        ],
        rows=[
            Row(
                cells=[
                    count(token["row"]),
                    count(token["position"]),
                    text(str(token["token_id"]), order=float(token["token_id"])),
                    *([code(visible(token.get("text") or ""))] if texts else []),
                    amount(token["behavior_log_prob"]),
                    amount(token["target_log_prob"]),
                    amount(token["log_ratio"]),
                ]
            )
            for token in result.worst_tokens
        ],
    )
    how = (
        "Rows are counted from 0 over the whole table, positions from the first response token; "
        "log-probs and log-ratios are in nats."
    )
    return Section(
        title="Tokens with the largest |log-ratio|", blocks=[table, Words(text=how, soft=True)]
    )


def visible(value: str) -> str:
    """Write white space of a token so that it can be seen, and of a long one both ends."""
    return shortened(value, LONGEST).replace("\n", "⏎").replace(" ", "␣")


def _ids(result: ScoreResult) -> Section | None:
    if not result.worst_token_ids:
        return None
    texts = any(token.text is not None for token in result.worst_token_ids)
    table = Table(
        name="token-ids",
        label="Token ids that make up most of the mismatch",
        columns=[
            Column(head="Token id", numbers=True),
            *([Column(head="Text")] if texts else []),
            Column(head="Tokens", numbers=True),
            Column(head="Share of tokens", numbers=True),
            Column(head="Share of squares", numbers=True),
            Column(head="rms log-ratio (nats)", numbers=True),
            Column(head="Mean log-ratio (nats)", numbers=True),
        ],
        rows=[Row(cells=_id_cells(token, texts)) for token in result.worst_token_ids],
    )
    how = (
        "A token whose share of squares is far above its share of tokens is where the policies "
        "part; a mean whose interval excludes 0 is a direction, as drift or a wrong head gives, "
        "and not noise."
    )
    return Section(
        title="Token ids that make up most of the squares",
        blocks=[table, Words(text=how, soft=True)],
        screen=True,
    )


def _id_cells(token: Any, texts: bool) -> list[Any]:
    return [
        text(str(token.token_id), order=float(token.token_id)),
        *([code(visible(token.text or ""))] if texts else []),
        count(token.tokens),
        share(token.share_of_tokens),
        share(token.share_of_squares),
        amount(token.log_ratio_rms),
        metric(token.log_ratio_mean),
    ]
