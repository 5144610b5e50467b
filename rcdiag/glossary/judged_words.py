"""How `rcdiag sweep` judges candidates. Source: reference/theory.md 2.7 and 4.3."""

from __future__ import annotations

from rcdiag.glossary.entry import Entry, by_hand, said

JUDGED: dict[str, Entry] = {
    "efficiency": said(
        what="How well a candidate serves, free of scale: the descent expected of its gradient at "
        "the best step size, relative to the reference without noise. Where that gradient is not "
        "to be had or not to be believed: 1 - bias / 2. `method` says which.",
        formula="(m . g)^2 / (|g|^2 E|mean|^2); m the candidate's mean gradient, g that of "
        "untruncated ratios of sequences",
        units="none",
        healthy="ideal 1; it ranks candidates of one table and is not comparable between tables "
        "(theory.md 2.7)",
        example="a gradient across the reference: 0; the reference itself without noise: 1",
        see=("bias", "indistinguishable"),
    ),
    "rank": said(
        what="Place of a candidate by efficiency, from 1; null where it is refused.",
        example="rcdiag sweep rollouts.parquet --json | jq '.recommendation.candidates[].rank'",
        see=("efficiency", "refused"),
    ),
    "refused": said(
        what="Constraints that a candidate breaks, in words: acceptance below 0.7, lost mass above "
        "0.1, fewer than 30 effective sequences, a tail too heavy, keeping that goes with the "
        "length, a reward shift, ratios above the trainer's clamp.",
        healthy="ideal: none; the bounds are those of theory.md 4.3, step 3",
        example="keeps 21.0% of the sequences, below 70%",
        see=("kept_sequence_share", "lost_mass", "ess_seq_applied", "khat", "reward_shift"),
    ),
    "indistinguishable": said(
        what="Candidates within one standard error of the best: the table does not tell them "
        "apart, and the simplest of them is chosen.",
        formula="efficiency of the best less its own <= standard deviation of that over replicates "
        "of the clusters",
        example="none among them: do not correct",
        see=("efficiency", "do-not-correct"),
    ),
    "choice": said(
        what="The candidate that is recommended; null where there is none.",
        example="rcdiag sweep rollouts.parquet --json | jq .recommendation.choice",
        see=("correct", "none", "indistinguishable"),
    ),
}

KIND = by_hand("judgement of candidates", "How `rcdiag sweep` judges candidates", JUDGED)
