"""The answers that a recommendation of `rcdiag sweep` can give are explained here."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, by_hand, unnamed_entry

ANSWERS: dict[str, Entry] = {
    "take": unnamed_entry(
        what="Take the candidate in `choice`: the simplest one within one standard error of the "
        "best, and 5%.",
        example="rcdiag sweep rollouts.parquet --emit verl > correction.yaml",
        see=("efficiency", "indistinguishable", "none"),
    ),
    "no-correction": unnamed_entry(
        what="Train without a correction: weights of whole sequences differ from 1 by less than "
        "0.01 on average, or no candidate has a lower error by more than one standard error and "
        "5%.",
        healthy="what one wants to read: behavior and target are as good as the same",
        example="recorded log-probs of a trainer that uses the sampler's own precision",
        see=("none", "efficiency"),
    ),
    "fix-the-cause": unnamed_entry(
        what="The log-probs cannot be trusted: values are NaN, or the tokens were not sampled from "
        "the recorded behavior policy. Ratios are noise then, and weighting with them does harm.",
        example="log-probs recorded before the temperature was applied",
        see=("fix-before-correcting", "kappa", "ratio_mean_z"),
    ),
    "cannot-distinguish": unnamed_entry(
        what="The table does not tell which candidate has the lowest error. Too few sequences "
        "carry the ratios for a reference, or the reference is so noisy that the bias without "
        "correction is not known to within the variance of one batch; every candidate breaks a "
        "constraint; all sequences belong to one prompt group; no advantage is known; or the mean "
        "ratio of sequences is above 1. What the candidates cost in variance is shown.",
        example="ratios of 4,000-token sequences, carried by 3 of 512 sequences",
        see=("refused", "gradient_bias_high", "few-clusters"),
    ),
}

KIND = by_hand("answer of a sweep", "Answers of `rcdiag sweep`", ANSWERS)
