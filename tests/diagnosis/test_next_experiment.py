"""`next` advises an experiment that has not been run, and none if no question is open."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from rcdiag.diagnosis.next_experiment import next_after_experiments, next_experiment
from rcdiag.results.diagnosis import Diagnosis, NamedCause
from tests.diagnosis.tables import judged, made

CASE = made(rows=16, length=30, prompt_length=np.full(16, 20))


def cause(slug: str, confidence: float, *possible: str) -> NamedCause:
    return NamedCause(
        slug=slug,
        verdict="correctable",
        confidence=confidence,
        side="sampler",
        share_of_rows=1.0,
        message="",
        evidence=[],
        actions=[],
        also_possible=list(possible),
    )


def after(verdict, *causes, checkpoints=(), not_run=()):
    diagnosis = Diagnosis(verdict=verdict, summary="", pair={}, causes=list(causes))
    return [
        (action.text, action.command)
        for action in next_after_experiments(
            diagnosis, CASE, model="ckpt/step 8", checkpoints=checkpoints, not_run=not_run
        )
    ]


def test_a_table_without_experiments_advises_the_checkpoint():
    named = [cause("forwards-differ", 0.85, "stale-weights", "int4-weights")]
    (action,) = next_experiment(CASE, "inconclusive", named)
    assert action.command == f"rcdiag diagnose {CASE.source} --model CKPT"
    assert action.text.startswith("separate forwards-differ from stale-weights and int4-weights")


def test_without_prompts_no_checkpoint_is_advised():
    named = [cause("forwards-differ", 0.85, "stale-weights")]
    (action,) = next_experiment(made(rows=16, length=30), "inconclusive", named)
    assert action.command is None
    assert "prompt_ids" in action.text


@pytest.mark.parametrize(
    ("verdict", "named"),
    [
        ("healthy", cause("engine-noise", 0.9, "healthy")),
        ("broken", cause("shift-by-one", 0.97, "rows-swapped")),
        ("correctable", cause("fp8-weights", 0.9)),
    ],
)
def test_nothing_is_advised_if_no_question_is_open(verdict, named):
    assert next_experiment(CASE, verdict, [named]) == []
    assert after(verdict, named) == []


def test_experiments_that_ran_out_of_time_are_advised_with_the_same_checkpoints():
    ((text, command),) = after(
        "correctable",
        cause("fp8-weights", 0.99),
        checkpoints=["ckpt/step_4"],
        not_run=["quantised", "window", "rotary", "packing", "order"],
    )
    assert (
        text
        == "run what did not fit into the budget: quantised, window, rotary, packing and 1 more"
    )
    assert command == (
        f"rcdiag diagnose {CASE.source} --model 'ckpt/step 8' --checkpoint ckpt/step_4"
    )


def test_older_weights_are_advised_if_none_were_tried():
    named = cause("weights-differ", 0.7, "partial-sync")
    ((_, command),) = after("inconclusive", named)
    assert command.endswith("--checkpoint OLDER")
    ((_, command),) = after("inconclusive", named, checkpoints=["ckpt/step_4"])
    assert command == f"rcdiag compare {CASE.source} --model 'ckpt/step 8' --ladder engine"


def test_the_engine_is_advised_if_no_weights_are_suspected():
    ((text, command),) = after("inconclusive", cause("moe-routing", 0.6, "engine-noise"))
    assert text.startswith("re-score the same tokens with the sampler's engine")
    assert command.endswith("--ladder engine")


def test_a_table_of_one_prompt_needs_a_second_one() -> None:
    case = made(rows=64, length=60, group_of=64, prompt_length=np.full(64, 20))
    (action,) = judged(case).next
    assert action.command is None
    assert action.text == "add rows of a second prompt: more rows of the same one do not tell"


def test_few_rows_need_more() -> None:
    (action,) = judged(made(rows=7, length=60, prompt_length=np.full(7, 20))).next
    assert action.text == "take more rows: 7 are too few, 8 are needed"


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_bypass_table_with_the_current_policy_is_judged_by_it(is_copy: bool) -> None:
    """In bypass mode `old` is a copy of what the sampler recorded, and `current` need not be."""
    case = made(rows=64, length=60, prompt_length=np.full(64, 20))
    sampler, trainer = case.log_probs["rollout"], case.log_probs["old"]
    case = case.with_log_probs("old", sampler)
    case = case.with_log_probs("current", sampler if is_copy else trainer)
    (action,) = judged(case).next
    wanted = "--model CKPT" if is_copy else "--target current"
    assert action.command == f"rcdiag diagnose {case.source} {wanted}"


def test_commands_name_the_pair_that_is_not_the_usual_one() -> None:
    case = made(rows=16, length=30, prompt_length=np.full(16, 20))
    named = [cause("forwards-differ", 0.85, "stale-weights")]
    columns = {"a": case.log_probs["rollout"], "b": case.log_probs["old"]}
    (action,) = next_experiment(
        replace(case, sampler="a", trainer="b", log_probs=columns), "inconclusive", named
    )
    assert action.command == f"rcdiag diagnose {case.source} --behavior a --target b --model CKPT"
