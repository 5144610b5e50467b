"""The four verdicts of a diagnosis are explained here."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, Kind, first_clause

VERDICTS: dict[str, str] = {
    "healthy": "Two policies were compared, and what is between them is rounding noise that costs "
    "nothing. `sweep` recommends no correction.",
    "correctable": "A genuine mismatch, and the recorded distribution is the one that sampled, so "
    "that importance sampling is valid. Its cause may still be worth removing; then the remedy "
    "stands first.",
    "broken": "A fault that no weights repair: the recorded distribution did not sample, columns "
    "do not belong together, the two sides saw other contexts, the trainer's own column is wrong, "
    "or the data are damaged. `sweep` ranks nothing.",
    "inconclusive": "Too little data, one policy alone, or evidence that points both ways. `next` "
    "names the experiment, the column or the number of rows that would decide.",
}
EXAMPLES: dict[str, str] = {
    "healthy": "two engines in bfloat16 and float32 with the same weights",
    "correctable": "stale weights: the sampler is some steps behind",
    "broken": "log-probs recorded before the temperature; --fail-on error exits with 1",
    "inconclusive": "two columns that are equal to the last bit",
}


# `healthy` is a cause too, so that names of verdicts say what they are.
NAMES = {f"verdict-{name}": name for name in VERDICTS}


def entry(name: str) -> Entry:
    verdict = NAMES[name]
    return Entry(name=name, kind=KIND.title, what=VERDICTS[verdict], example=EXAMPLES[verdict])


KIND: Kind = Kind(
    title="verdict",
    plural="Verdicts",
    names=lambda: NAMES,
    line=lambda name: first_clause(VERDICTS[NAMES[name]]),
    entry=entry,
    aliases={name: f"verdict-{name}" for name in VERDICTS if name != "healthy"},
)
