"""The answers that a recommendation of `rcdiag sweep` can give are explained here."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, by_hand, unnamed_entry

ANSWERS: dict[str, Entry] = {
    "correct": unnamed_entry(
        what="Take the candidate in `choice`: the simplest one within one standard error of the "
        "best, and 5%.",
        example="rcdiag sweep rollouts.parquet --emit verl > correction.yaml",
        see=("efficiency", "indistinguishable", "none"),
    ),
    "do-not-correct": unnamed_entry(
        what="No correction: weights of whole sequences differ from 1 by less than 0.01 on "
        "average, no estimator is better than none by more than one standard error and 5%, or too "
        "few sequences carry the ratios to tell.",
        healthy="what one wants to read: behavior and target are as good as the same",
        example="recorded log-probs of a trainer that uses the sampler's own precision",
        see=("none", "efficiency"),
    ),
    "fix-the-cause": unnamed_entry(
        what="The log-probs are not to be believed: values are NaN, or the tokens were not drawn "
        "from the recorded behavior policy. Ratios are noise then, and weighting by them harms.",
        example="log-probs recorded before the temperature was applied",
        see=("fix-before-correcting", "kappa", "ratio_mean_z"),
    ),
    "cannot-judge": unnamed_entry(
        what="Every candidate breaks a constraint, all sequences depend on each other, so that no "
        "difference has an error, no advantage is known, or a correction would be taken by ratios "
        "whose mean over sequences is above 1.",
        example="a table of a single prompt group",
        see=("refused", "few-clusters"),
    ),
}

KIND = by_hand("answer of a sweep", "Answers of `rcdiag sweep`", ANSWERS)
