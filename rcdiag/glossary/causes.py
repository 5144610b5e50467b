"""Causes of a mismatch are explained by the words in `diagnosis/causes/words`."""

from __future__ import annotations

from rcdiag.diagnosis.causes.cause_words import FAMILIES, PLACES, CauseWords, cause_words
from rcdiag.glossary.entry import Entry, Kind

# What each verdict of a cause means for the run.
VERDICTS = {
    "fix": "fix: importance weights do not mend it",
    "correct": "correct: importance weights are valid; the cause is worth mending all the same",
    "guides": "fine or correct, by the size of the numbers",
}
SIDES = {
    "sampler": "the sampler, most often",
    "recorder": "what records the log-probs, most often",
    "trainer": "the trainer, most often",
    "storage": "the storage",
    "engine": "the engine, most often",
    "none": "nobody",
}


def numbered(lines: tuple[str, ...]) -> str:
    """Write lines under each other, with numbers where there are several."""
    if len(lines) == 1:
        return lines[0]
    return "\n".join(f"{number} {line}" for number, line in enumerate(lines, start=1))


def entry(slug: str) -> Entry:
    words = cause_words()[slug]
    return Entry(
        name=slug,
        kind=KIND.title,
        what=f"{words.title[0].upper()}{words.title[1:]}. {words.says}",
        generations={PLACES[place]: text for place, text in words.mend_in.items()},
        parts=_parts(words),
        links={link.text: link.url for link in words.links},
        see=(*words.umbrella, *words.look_alikes),
    )


def _parts(words: CauseWords) -> dict[str, str]:
    return {
        "family": FAMILIES[words.family],
        "at fault": SIDES[words.side],
        "verdict": VERDICTS[words.verdict],
        "shows": words.shows,
        "told apart": words.told_apart,
        "mend": numbered(words.mend),
    }


KIND: Kind = Kind(
    title="cause",
    plural="Causes of a mismatch",
    names=cause_words,
    line=lambda slug: cause_words()[slug].title,
    entry=entry,
)
