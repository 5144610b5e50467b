"""The cheapest experiment that would split what a diagnosis leaves open, as a command to copy."""

from __future__ import annotations

from collections.abc import Sequence

from rcdiag.diagnosis.case import Case
from rcdiag.results.diagnosis import Action, Diagnosis, NamedCause

SURE = 0.95  # confidence from which on no look-alike is worth an experiment
NAMED = 3  # experiments without time that are named
# Causes that another checkpoint's weights would tell from the others.
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
    """Name the command that tells more than the table alone, where something is open."""
    if case.trainer is None:
        return [_other_side(case)]
    if not _is_open(verdict, causes):
        return []
    if not can_be_scored(case):
        text = (
            "record `prompt_ids`, or give the dump that has them too: a checkpoint then tells more"
        )
        return [Action(text=text)]
    return [
        Action(
            text=f"{_split(causes)}, with the trainer's checkpoint",
            command=f"rcdiag diagnose {case.source} --model {_checkpoint(case)}",
        ),
    ]


def _other_side(case: Case) -> Action:
    """Name the command that fills the column which the table lacks."""
    column = "`old_log_probs`" if case.sampler != "old" else "`rollout_log_probs`"
    if can_be_scored(case):
        return Action(
            text=f"add the other side, {column}",
            command=f"rcdiag score {case.source} --model CKPT",
        )
    return Action(
        text=f"pass the dump with {column} as a second argument; a checkpoint could only score it "
        "with `prompt_ids`",
        command=f"rcdiag score {case.source} OTHER_DUMP",
    )


def can_be_scored(case: Case) -> bool:
    """Tell whether a checkpoint can score the rows: it needs their prompts."""
    return case.facts.prompt_length is not None


def next_after_experiments(
    diagnosis: Diagnosis, case: Case, *, model: str, checkpoints: Sequence[str], left: Sequence[str]
) -> list[Action]:
    """Name what tells more than the experiments that a checkpoint has just been asked for.

    `left` are experiments for which no time was left. Older weights are worth a try where none were
    tried; else the sampler's own engine, asked again, tells the engine from what it was given.
    """
    if case.trainer is None:
        return diagnosis.next
    again = f"rcdiag diagnose {case.source} --model {quoted(model)}"
    tried = "".join(f" --checkpoint {quoted(name)}" for name in checkpoints)
    if left:
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        text = f"run what no time was left for: {', '.join(left[:NAMED])}{more}"
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
            text="tell the engine from what it was given: score the same tokens with it again",
            command=f"rcdiag score {case.source} --model {quoted(model)} --ladder engine",
        )
    ]


def _is_open(verdict: str, causes: Sequence[NamedCause]) -> bool:
    """Tell whether the first cause has look-alikes, or the verdict is none."""
    if not causes or verdict == "healthy":
        return False
    first = causes[0]
    return verdict == "inconclusive" or bool(first.also_possible and first.confidence < SURE)


def _split(causes: Sequence[NamedCause]) -> str:
    """Say which causes an experiment would tell apart."""
    first = causes[0]
    if not first.also_possible or first.confidence >= SURE:
        return "tell more"
    return f"tell {first.slug} from {' and '.join(first.also_possible[:2])}"


def _checkpoint(case: Case) -> str:
    """Return the trainer's model as the metadata names it, or the word CKPT."""
    about = case.metadata.get("policies", {}).get(case.trainer, {})
    model = about.get("model") if isinstance(about, dict) else None
    return quoted(model) if isinstance(model, str) else "CKPT"


def quoted(model: str) -> str:
    """Write a model's place as a shell takes it."""
    return f"'{model}'" if "{" in model or " " in model else model
