"""The tab Tokens: where the mismatch is, and which tokens and sequences contribute most."""

from __future__ import annotations

from itertools import groupby
from math import isnan

from rcdiag.formats import number, shortened
from rcdiag.pages.blocks import (
    Block,
    Cell,
    Figures,
    Fold,
    Paragraph,
    Section,
    Slot,
    Tab,
    amount,
    code,
    count,
    metric,
    numbers,
    share,
    tab_of,
    table,
    text,
    words,
)
from rcdiag.pages.command_again import with_sequence
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.score.exceedance import SMALLEST, any_beyond
from rcdiag.pages.score.profiles import FIGURES as PROFILES
from rcdiag.pages.score.training import BESIDE_MISMATCH
from rcdiag.pages.tabs.corrections.treatments import recommended
from rcdiag.pages.tabs.diagnosis import BY_STEP, MORE_BY_STEP
from rcdiag.results import ScoreResult, SequenceTokens

LONGEST = 60  # characters of a name or a token in a table
MOST_PRINTED = 3  # sequences whose text is printed, or shown without a script
PROFILE_NAMES = tuple(spec.name for spec in PROFILES)


def tab(results: DumpResults) -> Tab | None:
    """Make the tab; None if no pair was scored."""
    score = results.score
    if score is None or not score.target:
        return None
    # The reader starts with the recommended preset, or else the first, that has weights.
    weighed = [name for name, one in score.corrections.items() if one.weight_sum is not None]
    chosen = recommended(results)
    wanted = weighed if chosen is None else [*chosen.names, *weighed]
    preset = next((name for name in wanted if name in weighed), "")
    made = tab_of(
        "tokens",
        "Tokens",
        "Where the mismatch is",
        _where(score),
        _profile(score),
        _sequences(score, preset),
        _tokens(score),
        _ids(score),
    )
    return made if made.sections else None


def _where(result: ScoreResult) -> Section | None:
    """Show the figures of all tokens: those that are neither profiles nor over the steps."""
    elsewhere = (*PROFILE_NAMES, *BY_STEP, *MORE_BY_STEP, BESIDE_MISMATCH)
    others = [f for f in figures_of(result) if f.name not in elsewhere]
    if not others:
        return None
    blocks: list[Block] = []
    if result.rows_left_out:
        left = result.num_sequences - result.rows_left_out
        covers = (
            f"This tab covers the {left:,} of {result.num_sequences:,} responses whose log-probs "
            "are neither NaN nor infinite nor positive."
            if left
            else "Every response has log-probs that are NaN, infinite or positive; this tab shows "
            "the values as they are."
        )
        blocks.append(Paragraph(text=covers, soft=True))
    if "log_ratio_histogram" in result.figures and not any_beyond(result):  # it has no figure
        agree = f"No log-ratio is larger than {number(SMALLEST)} nats."
        blocks.append(Paragraph(text=agree, soft=True))
    blocks.append(Figures(items=others))
    return Section(title="How many tokens, and how far", blocks=blocks)


def _profile(result: ScoreResult) -> Section | None:
    figures = figures_of(result, PROFILE_NAMES)
    if not figures:
        return None
    return Section(
        title="What it depends on", blocks=[Figures(items=figures, picker="Mismatch by")]
    )


def _sequences(result: ScoreResult, preset: str) -> Section | None:
    """Make the sequence reader; `preset` is the correction whose weights it shows at first."""
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
    rows = table(
        "sequences",
        "Sequences of the page",
        SEQUENCE_COLUMNS,
        listed,
        lambda item: {"key": str(item[0].row)},
        screen=len(sequences) > MOST_PRINTED,
    )
    reader = Slot(name="transcript", data={"preset": preset, "more": with_sequence(result)})
    fold = Fold(label=f"These {len(listed)} sequences as a table", blocks=[rows])
    blocks: list[Block] = [Paragraph(text=_contents(result), soft=True), reader, fold]
    texts = [sequence for sequence in result.worst_sequences if sequence.texts]
    if texts:
        printed = [{"row": one.row, "pieces": pieces(one)} for one in texts[:MOST_PRINTED]]
        blocks.append(Slot(name="texts", data=printed))
    return Section(title="Sequences, token by token", blocks=blocks, name="transcripts")


def _contents(result: ScoreResult) -> str:
    """Say which sequences the page contains, and how much of each."""
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
        f"{held} Of their {tokens:,} tokens {stored:,} are here: of long sequences the first "
        "tokens, and those around the largest |log-ratio|."
    )


def pieces(sequence: SequenceTokens) -> list[tuple[str, str]]:
    """Return the text of a sequence in runs of one colour: class of the colour, and text."""
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
    """Return the colour class of a token: the sign of its log-ratio, and its size in four steps."""
    size = sum(abs(log_ratio) > bound for bound in (0.01, 0.1, 0.5, 2.0))
    return f"{'up' if log_ratio > 0 else 'down'}{size}" if size else ""


def _largest_of(sequence: SequenceTokens) -> float | None:
    """Return the log-ratio with the largest absolute value; NaN counts as smallest.

    None if only the first tokens of the sequence are stored.
    """
    whole = len(sequence.log_ratio) >= sequence.num_tokens or sequence.gaps is not None
    if not whole or not sequence.log_ratio:
        return None
    return max(sequence.log_ratio, key=lambda value: -1.0 if isnan(value) else abs(value))


# Columns of the table of sequences; items are pairs of a sequence and why it is on the page.
SEQUENCE_COLUMNS = (
    numbers("Row", lambda item: count(item[0].row)),
    words("Here as", lambda item: text(item[1])),
    words(
        "Sample",
        lambda item: text(
            "" if item[0].sample_id is None else shortened(str(item[0].sample_id), LONGEST)
        ),
    ),
    numbers("Step", lambda item: count(item[0].step)),
    numbers("Reward", lambda item: amount(item[0].reward)),
    numbers("Tokens", lambda item: count(item[0].num_tokens)),
    numbers("Sum of log-ratios (nats)", lambda item: amount(item[0].log_ratio_sum)),
    numbers("Largest token (nats)", lambda item: amount(_largest_of(item[0]))),
)


def _tokens(result: ScoreResult) -> Section | None:
    if not result.worst_tokens:
        return None
    worst = table(
        "worst-tokens",
        "Tokens with the largest log-ratios",
        [
            numbers("Row", lambda token: count(token["row"])),
            numbers("Position", lambda token: count(token["position"])),
            numbers("Token id", lambda token: _id(token["token_id"])),
            words("Text", lambda token: code(visible(token.get("text") or ""))),
            numbers(
                f"Log-prob, {result.behavior}", lambda token: amount(token["behavior_log_prob"])
            ),
            numbers(f"Log-prob, {result.target}", lambda token: amount(token["target_log_prob"])),
            numbers("Log-ratio", lambda token: amount(token["log_ratio"])),
        ],
        result.worst_tokens,
    )
    how = (
        "Rows are counted from 0 over the whole table, positions from the first response token; "
        "log-probs and log-ratios are in nats."
    )
    return Section(
        title="Tokens with the largest |log-ratio|", blocks=[worst, Paragraph(text=how, soft=True)]
    )


def _id(token_id: int) -> Cell:
    return text(str(token_id), order=float(token_id))


def visible(value: str) -> str:
    """Make white space of a token visible, and shorten a long token in the middle."""
    return shortened(value, LONGEST).replace("\n", "⏎").replace(" ", "␣")


def _ids(result: ScoreResult) -> Section | None:
    if not result.worst_token_ids:
        return None
    ids = table(
        "token-ids",
        "Token ids that make up most of the mismatch",
        [
            numbers("Token id", lambda token: _id(token.token_id)),
            words("Text", lambda token: code(visible(token.text or ""))),
            numbers("Tokens", lambda token: count(token.tokens)),
            numbers("Share of tokens", lambda token: share(token.share_of_tokens)),
            numbers("Share of squares", lambda token: share(token.share_of_squares)),
            numbers("rms log-ratio (nats)", lambda token: amount(token.log_ratio_rms)),
            numbers("Mean log-ratio (nats)", lambda token: metric(token.log_ratio_mean)),
        ],
        result.worst_token_ids,
    )
    how = (
        "The policies differ most at tokens whose share of squares is far above their share of "
        "tokens. If the interval of a mean excludes 0, the difference is systematic, as by drift "
        "or a wrong head, and not noise."
    )
    return Section(
        title="Token ids that make up most of the squares",
        blocks=[ids, Paragraph(text=how, soft=True)],
        screen=True,
    )
