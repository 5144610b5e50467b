"""Causes of a mismatch are explained by the words on their definitions."""

from __future__ import annotations

from rcdiag.diagnosis.causes.cause import CAUSES
from rcdiag.diagnosis.causes.cause_words import FAMILIES, PLACES, CauseWords, cause_words
from rcdiag.entry import Entry
from rcdiag.glossary.kinds import Kind

# What each verdict of a cause means for the run.
VERDICTS = {
    "broken": "broken: importance weights do not repair it",
    "correctable": "correctable: importance weights are valid; the cause is still worth removing",
    "guides": "healthy or correctable, by the size of the numbers",
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


def words_of_all() -> dict[str, CauseWords]:
    """Return the words of the causes that ship, and of those that packages of others add."""
    return {**cause_words(), **{slug: cause.words for slug, cause in CAUSES.items()}}


def entry(slug: str) -> Entry:
    words = words_of_all()[slug]
    return Entry(
        what=f"{words.title[0].upper()}{words.title[1:]}. {words.says}",
        generations={PLACES[place]: text for place, text in words.mend_in.items()},
        parts=_parts(words),
        links={link.text: link.url for link in words.links},
        see=(*words.umbrella, *words.look_alikes),
    )


def _parts(words: CauseWords) -> dict[str, str]:
    return {
        "family": FAMILIES.get(words.family, words.family),
        "at fault": SIDES[words.side],
        "verdict": VERDICTS[words.verdict],
        "shows": words.shows,
        "similar": words.told_apart,
        "fix": numbered(words.mend),
    }


KIND: Kind = Kind(
    title="cause",
    plural="Causes of a mismatch",
    names=words_of_all,
    line=lambda slug: words_of_all()[slug].title,
    entry=entry,
)
