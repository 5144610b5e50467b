"""The four verdicts of a diagnosis are explained here."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, Kind, first_clause

VERDICTS: dict[str, str] = {
    "fine": "What is there is rounding noise and costs nothing. `sweep` recommends no correction.",
    "correct": "A genuine mismatch, and the recorded law is the law that sampled, so that "
    "importance sampling is valid. The cause may still be worth mending, and stands first.",
    "fix": "A fault that no weights mend: the recorded law did not sample, columns do not belong "
    "together, the two sides saw other contexts, the trainer's own column is wrong, or the data "
    "are broken. `sweep` ranks nothing.",
    "cannot-tell": "Too little data, evidence that points both ways, or a difference that is "
    "sure and whose cause is open, so that nobody knows whether weights mend it. `next` names the "
    "experiment that would tell.",
}
EXAMPLES: dict[str, str] = {
    "fine": "two engines in bfloat16 and float32 with the same weights",
    "correct": "stale weights: the sampler is some steps behind",
    "fix": "log-probs recorded before the temperature; rcdiag score --fail-on error exits with 1",
    "cannot-tell": "two columns that are equal to the last bit",
}


# `correct` is an answer of a sweep too, and `fix` a field: names of verdicts say what they are.
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
    aliases={"fine": "verdict-fine", "cannot-tell": "verdict-cannot-tell"},
)
