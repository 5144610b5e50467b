"""A token missing or added at the end of a sampled turn is detected from the ids."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import rcdiag
from rcdiag.diagnosis.case import Case
from rcdiag.diagnosis.causes.turn_boundaries import boundaries_of
from rcdiag.diagnosis.judge import diagnose
from tests.diagnosis.tables import made, with_tool_turns, write

# Ids of a template such as Qwen's: <|im_end|>, newline, <|im_start|>, and the roles.
END, NEWLINE, START, USER, ASSISTANT = 300, 301, 302, 303, 304
FIRST, SIZE = 20, 8
# What an agent loop appends between two sampled turns: the tool's message, rendered alone, and the
# beginning of the next turn. END before it was sampled.
MESSAGE = (START, USER, 9, 9, END, NEWLINE, START, ASSISTANT)
WHOLE = (NEWLINE, START, USER, 9, END, NEWLINE, START, ASSISTANT)


def table(*between: tuple[int, ...], rows: int = 128) -> Case:
    """Return a table of noise; row i has the tokens `between[i % len(between)]` after its turn."""
    case = with_tool_turns(made(rows=rows, seed=3), 0.0, FIRST, SIZE)
    ids = case.token_id.copy()
    for row, start in enumerate(case.start):
        ids[start + FIRST - 1] = END
        ids[start + FIRST : start + FIRST + SIZE] = between[row % len(between)]
    return replace(case, token_id=ids)


def named(case: Case) -> list[str]:
    return [cause.slug for cause in diagnose(case).causes]


def test_a_separator_that_is_lost_at_every_boundary():
    diagnosis = diagnose(table(MESSAGE))
    first = diagnosis.causes[0]
    assert (first.slug, first.verdict, diagnosis.verdict) == (
        "turn-boundary",
        "correctable",
        "correctable",
    )
    assert (first.side, first.share_of_rows) == ("sampler", 1.0)
    assert first.confidence > 0.9
    evidence = first.evidence[0]
    assert {name: evidence[name] for name in ("boundaries", "lost", "added", "kept")} == {
        "boundaries": 128,
        "lost": 128,
        "added": 0,
        "kept": 0,
    }
    assert (evidence["end"], evidence["separator"], evidence["opening"]) == (END, NEWLINE, START)
    assert evidence["between_other_messages"] == 128
    assert "At 128 of 128 ends of sampled turns token 301 is missing between 300 and 302" in (
        first.message
    )


def test_a_table_of_one_policy_shows_it_too():
    case = table(MESSAGE)
    case = replace(case, trainer=None, log_probs={"rollout": case.log_probs["rollout"]})
    assert named(case)[0] == "turn-boundary"


def test_boundaries_of_the_template_are_no_cause():
    diagnosis = diagnose(table(WHOLE))
    assert diagnosis.verdict == "healthy"
    assert "turn-boundary" not in [cause.slug for cause in diagnosis.causes]
    found = boundaries_of(table(WHOLE))
    assert found is not None
    assert found.kept.all()


def test_a_separator_that_some_rows_lost():
    """Without two adjacent rendered messages, other rows show the expected separator."""
    kept = (NEWLINE, START, USER, 9, 9, 9, 9, 9)
    lost = (START, USER, 9, 9, 9, 9, 9, 9)
    (first, *_) = diagnose(table(kept, kept, kept, lost)).causes
    assert first.slug == "turn-boundary"
    assert first.share_of_rows == pytest.approx(0.25)
    assert "it stands at 96 others" in first.message


@pytest.mark.parametrize(
    "between",
    [
        (NEWLINE, NEWLINE, START, USER, END, NEWLINE, START, ASSISTANT),
        (END, NEWLINE, START, USER, END, NEWLINE, START, ASSISTANT),  # the loop adds the end again
    ],
)
def test_a_duplicated_token(between):
    (first, *_) = diagnose(table(between)).causes
    assert first.slug == "turn-boundary"
    assert first.evidence[0]["added"] == 128
    assert "a token occurs twice" in first.message


@pytest.mark.parametrize(
    "between",
    [
        # A template without a separator (Llama 3).
        [(START, USER, 9, 9, END, START, ASSISTANT, 9)],
        # One whose turns end by the token that begins the tool's message (GLM).
        [(USER, 9, 9, 9, 9, ASSISTANT, 9, 9)],
        # An environment that appends its text without a template.
        [tuple(np.random.default_rng(k).integers(2, 200, SIZE)) for k in range(64)],
        # Such a text begins with a newline now and then.
        [(9, 8, 7, 6, 5, 4, 3, 2), (NEWLINE, 9, 8, 7, 6, 5, 4, 3), (7, 7, 7, 7, 7, 7, 7, 7)],
    ],
)
def test_other_templates_are_no_cause(between):
    assert "turn-boundary" not in named(table(*between))


def test_too_few_boundaries_give_no_evidence():
    """A table of single turns, with three exceptions."""
    case = table(MESSAGE)
    single = replace(case, mask=case.mask | (case.owner[:] > 2))
    assert boundaries_of(single) is None
    assert "turn-boundary" not in named(made(seed=3))


def test_a_fault_of_the_columns_is_named_beside_it():
    case = table(MESSAGE)
    values = {"old": case.log_probs["old"] / np.log(2), "rollout": case.log_probs["rollout"]}
    diagnosis = diagnose(replace(case, log_probs=values))
    assert diagnosis.verdict == "broken"
    assert {"log-base", "turn-boundary"} <= {cause.slug for cause in diagnosis.causes}


def test_commands_name_it(tmp_path):
    path = write(table(MESSAGE), tmp_path / "table.parquet")
    result = rcdiag.score(path)
    assert result.diagnosis is not None
    assert result.diagnosis.causes[0].slug == "turn-boundary"


FACTS = {"boundaries": 40, "lost": 36, "added": 0, "rows": 20, "rows_off": 18, "token": 198}


def test_evidence_of_a_conversion_with_the_tokenizer():
    case = replace(made(seed=3), metadata={"chat_template": FACTS})
    (first, *_) = diagnose(case).causes
    assert first.slug == "turn-boundary"
    assert first.share_of_rows == pytest.approx(0.9)
    assert "At 36 of 40 ends of sampled turns token 198 is missing" in first.message


@pytest.mark.parametrize(
    "facts",
    [
        {**FACTS, "lost": 0},
        {**FACTS, "boundaries": 4000, "lost": 5},
        {**FACTS, "lost": "many"},
        {},
        None,
        "text",
    ],
)
def test_a_conversion_without_evidence(facts):
    assert "turn-boundary" not in named(replace(made(seed=3), metadata={"chat_template": facts}))
