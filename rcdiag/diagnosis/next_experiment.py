"""The cheapest next experiment for an open diagnosis, as a command to copy."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence

import numpy as np

from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.features.declared import Declared
from rcdiag.diagnosis.thresholds import ENOUGH, FEWEST_ROWS, NEARLY_ALL, SHOWN
from rcdiag.formats import listed
from rcdiag.results.diagnosis import NOTHING_WRONG, Action, Diagnosis, NamedCause
from rcdiag.statistics.intervals import too_few

# In bypass mode trainers store a copy of the sampler's log-probs as `old`.
IDENTICAL, CURRENT = "columns-identical", "current"
# Causes that tests with other checkpoints can separate.
OF_OTHER_WEIGHTS = {
    "stale-weights",
    "weights-differ",
    "weights-never-synced",
    "partial-sync",
    "in-flight-update",
    "replica-unsynced",
    "tied-head-desync",
    "forwards-differ",
}


def next_experiment(case: Case, verdict: str, causes: Sequence[NamedCause]) -> list[Action]:
    """Name the command that settles what the table leaves open."""
    if case.trainer is None:
        return [_other_side(case)]
    if verdict == "inconclusive" and (data := _lacking_data(case, causes)):
        return [data]
    if not _is_open(verdict, causes):
        return []
    current = case.log_probs.get(CURRENT)
    updated = current is not None and np.any((current != case.log_probs[case.sampler])[case.mask])
    if causes[0].slug == IDENTICAL and updated:
        copy = f"in bypass mode `{case.trainer}` is a copy: judge `{CURRENT}` in its place"
        return [Action(text=copy, command=f"rcdiag diagnose {case.source} --target {CURRENT}")]
    if not can_be_scored(case):
        text = (
            "record `prompt_ids`, or also pass the dump that has them, so that a checkpoint can "
            "score the rows"
        )
        return [Action(text=text)]
    checkpoint = shell_path(Declared.of(case).trainer.model)
    return [
        Action(
            text=f"{_split(causes)}, with the trainer's checkpoint",
            command=f"{diagnose_again(case)} --model {checkpoint}",
        ),
    ]


def _lacking_data(case: Case, causes: Sequence[NamedCause]) -> Action | None:
    """Say which rows a table needs before anything can tell; None if it has enough."""
    first = causes[0].slug if causes else ""
    rows = int((case.tokens.per_row > 0).sum())
    if first == IDENTICAL:
        return None  # two columns that are equal in few rows are so in many
    if len(case.tokens) < ENOUGH:
        return Action(text=f"take more rows: {ENOUGH} tokens with log-probs of both sides")
    if rows < FEWEST_ROWS:
        return Action(text=f"take more rows: {rows} are too few, {FEWEST_ROWS} are needed")
    if first in NOTHING_WRONG and few_prompts(case):
        return Action(text="add rows of a second prompt: more rows of the same one do not tell")
    return None


def few_prompts(case: Case) -> bool:
    """Tell whether rows answer too few prompts for an interval of any number."""
    return too_few(np.bincount(case.cluster, case.tokens.per_row).astype(np.float64))


def diagnose_again(case: Case) -> str:
    """Return the command that diagnoses the pair of a case, without further options."""
    pair = "" if case.sampler == "rollout" else f" --behavior {case.sampler}"
    pair += "" if case.trainer in ("old", None) else f" --target {case.trainer}"
    return f"rcdiag diagnose {case.source}{pair}"


def _other_side(case: Case) -> Action:
    """Name the command that fills the missing column."""
    column = "`old_log_probs`" if case.sampler != "old" else "`rollout_log_probs`"
    if can_be_scored(case):
        return Action(
            text=f"score the missing side, {column}",
            command=f"rcdiag score {case.source} --model CKPT",
        )
    return Action(
        text=f"pass the other dump, with {column}, as a second argument (without `prompt_ids` no "
        "checkpoint can score it)",
        command=f"rcdiag score {case.source} OTHER_DUMP",
    )


def can_be_scored(case: Case) -> bool:
    """Tell whether a checkpoint can score the rows: it needs their prompts."""
    return case.facts.prompt_length is not None


def next_after_experiments(
    diagnosis: Diagnosis,
    case: Case,
    *,
    model: str,
    checkpoints: Sequence[str],
    not_run: Sequence[str],
) -> list[Action]:
    """Name what to run after the experiments with a checkpoint.

    `not_run` are experiments that did not fit into the budget. Older checkpoints are next if none
    were tested; else re-scoring with the sampler's engine separates the engine from its inputs.
    """
    if case.trainer is None:
        return diagnosis.next
    if diagnosis.verdict == "inconclusive" and (data := _lacking_data(case, diagnosis.causes)):
        return [data]
    again = f"{diagnose_again(case)} --model {quoted(model)}"
    tried = "".join(f" --checkpoint {quoted(name)}" for name in checkpoints)
    if not_run:
        text = f"run what did not fit into the budget: {listed(not_run, SHOWN)}"
        return [Action(text=text, command=f"{again}{tried}")]
    if not _is_open(diagnosis.verdict, diagnosis.causes):
        return []
    suspected = {
        slug for cause in diagnosis.causes[:1] for slug in (cause.slug, *cause.also_possible)
    }
    if not checkpoints and suspected & OF_OTHER_WEIGHTS:
        text = f"{_split(diagnosis.causes)}, with the weights of earlier steps"
        return [Action(text=text, command=f"{again} --checkpoint OLDER")]
    return [
        Action(
            text="re-score the same tokens with the sampler's engine, to separate the engine from "
            "its inputs",
            command=f"rcdiag compare {case.source} --model {quoted(model)} --ladder engine",
        )
    ]


def _is_open(verdict: str, causes: Sequence[NamedCause]) -> bool:
    """Tell whether the verdict is inconclusive, or look-alikes of the first cause remain likely.

    They do unless nearly all answers with the confidence of the first cause are right.
    """
    if not causes or verdict == "healthy":
        return False
    first = causes[0]
    return verdict == "inconclusive" or bool(first.also_possible and first.confidence < NEARLY_ALL)


def _split(causes: Sequence[NamedCause]) -> str:
    """Say which causes an experiment would tell apart."""
    first = causes[0]
    if not first.also_possible or first.confidence >= NEARLY_ALL:
        return "run the experiments"
    return f"separate {first.slug} from {' and '.join(first.also_possible[:2])}"


def shell_path(model: str | None, instead: str = "CKPT") -> str:
    """Return a model's path quoted for a shell, or `instead` if it is unknown or not found here.

    Metadata name paths of the machine and folder where the table was made.
    """
    if model is None:
        return instead
    folder = re.sub(r"\{(step|policy_version)\}", "*", model)
    return quoted(model) if glob.glob(folder) else instead


def quoted(model: str) -> str:
    """Return a model's path, quoted where a shell needs it."""
    return f"'{model}'" if "{" in model or " " in model else model
