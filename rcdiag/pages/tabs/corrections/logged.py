"""The comparison of the trainer's own log with our numbers."""

from __future__ import annotations

from rcdiag.pages.blocks import (
    Block,
    Figures,
    Fold,
    Lines,
    Paragraph,
    Section,
    numbers,
    table,
    term,
    text,
    words,
)
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.score.logged import counted_keys, lines_of
from rcdiag.pages.score.training import BESIDE_MISMATCH
from rcdiag.results import ScoreResult


def own_log(score: ScoreResult | None) -> Section | None:
    """Compare the trainer's own log with our numbers, keys that differ first."""
    logged = None if score is None else score.logged
    if logged is None:
        return None
    preset = f" ({logged.preset_reason})" if logged.preset else ""
    steps = f" Steps: {logged.step_reason}." if logged.step_reason else ""
    each = (
        " Each key is shown at the step of its largest difference; the result document has every "
        "step."
    )
    how = (
        f"`{logged.file}` ({logged.log_format}): {counted_keys(logged)}{preset}.{steps}"
        f"{each if logged.keys else ''}"
    )
    lines = table(
        "logged",
        "The trainer's own log",
        [
            words("Key", lambda line: term(line.key)),
            numbers("Step", lambda line: text(line.step)),
            numbers("Theirs", lambda line: text(line.theirs)),
            numbers("Ours", lambda line: text(line.ours)),
            words(
                "Reads",
                lambda line: text(line.reads, level="ok" if line.agrees else "", note=line.reason),
            ),
        ],
        lines_of(logged),
        search=True,
    )
    blocks: list[Block] = []
    if figures := figures_of(score, [BESIDE_MISMATCH]):
        blocks.append(Figures(items=figures))
    blocks += [Paragraph(text=how), *([lines] if logged.keys else [])]
    for keys, what in (
        (list(logged.not_ours), "keys of the log that rcdiag does not compute"),
        (logged.not_logged, "keys that are not in the log"),
    ):
        if keys:
            blocks.append(Fold(label=f"{len(keys)} {what}", blocks=[Lines(items=keys)]))
    return Section(title="The trainer's own log", blocks=blocks, name="logged")
