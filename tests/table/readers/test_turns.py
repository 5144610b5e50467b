"""Turns become rows: joined if the prompt continues, split if the history was rewritten."""

import numpy as np
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.reader import Dump, Notes
from rcdiag.table.readers.turns import FIRST, JOINED, NO_PROMPT, SPLIT, rows_of_turns, turn_of

NAMES = ("logps", "tokens")


def made(*turns, **columns):
    """Return rows as plain lists, and notes; a turn is (prompt, tokens, log-probs, columns)."""
    notes = Notes()
    whole = [
        turn_of(7, f"a/b.json, line 7, turn {place}", prompt, tokens, logps, NAMES, **rest)
        for place, (prompt, tokens, logps, rest) in enumerate(turns)
    ]
    rows = [
        {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in row.items()
        }
        for _, row in rows_of_turns(whole, Dump(files=(), notes=notes), columns)
    ]
    return rows, notes.changes


def test_a_row_has_all_turns_that_continue():
    rows, changes = made(
        ([1, 2], [3, 4], [-0.5, -0.25], {}),
        ([1, 2, 3, 4, 5, 6], [7], [-1.0], {}),
        ([1, 2, 3, 4, 5, 6, 7], [8], [-2.0], {}),
        group_id="g",
    )
    assert rows == [
        {
            "prompt_ids": [1, 2],
            "response_ids": [3, 4, 5, 6, 7, 8],
            "response_mask": [1, 1, 0, 0, 1, 1],
            "rollout_routed_experts": None,
            "rollout_log_probs": [-0.5, -0.25, 0.0, 0.0, -1.0, -2.0],
            "turn": 0,
            "group_id": "g",
        }
    ]
    assert changes == {JOINED: 1}


def test_dropped_thinking_splits_a_trajectory():
    """The second prompt has an empty block in place of the thinking 4 5 of the first turn."""
    rows, changes = made(
        ([1, 2], [3, 4, 5, 6], [-0.5] * 4, {}),
        ([1, 2, 3, 6, 9], [7], [-1.0], {}),
        ([1, 2, 3, 6, 9, 7, 9], [8], [-2.0], {}),
        group_id="g",
    )
    assert [row["turn"] for row in rows] == [0, 1]
    assert [row["group_id"] for row in rows] == ["g", "g"]
    assert rows[0]["response_ids"] == [3, 4, 5, 6]
    assert rows[1]["prompt_ids"] == [1, 2, 3, 6, 9]
    assert rows[1]["response_ids"] == [7, 9, 8]
    assert rows[1]["response_mask"] == [1, 0, 1]
    first = FIRST.format(turn="b.json, line 7, turn 1", place=3)
    assert changes == {first: 1, SPLIT: 1, JOINED: 1}


@pytest.mark.parametrize(
    ("prompt", "goes_on"),
    [
        ([1, 2, 3, 4], True),  # nothing between the turns
        ([1, 2, 3], False),  # cut off
        ([1, 2, 3, 5], False),  # another sampled token
        ([9, 2, 3, 4], False),  # another prompt, the same sampled tokens
        ([1, 2, 3, 3, 4], False),  # the sampled tokens elsewhere
    ],
)
def test_a_prompt_continues_only_with_all_previous_tokens(prompt, goes_on):
    rows, _ = made(([1, 2], [3, 4], None, {}), (prompt, [8], None, {}))
    assert len(rows) == (1 if goes_on else 2)
    sampled = [
        token
        for row in rows
        for token, mask in zip(row["response_ids"], row["response_mask"], strict=True)
        if mask
    ]
    assert sampled == [3, 4, 8]


def test_a_turn_continues_the_longest_row():
    rows, _ = made(
        ([1], [2], None, {}),
        ([1, 2], [3], None, {}),
        ([1], [2, 3, 4], None, {}),
        ([1, 2, 3, 4, 5], [6], None, {}),
    )
    assert [row["response_ids"] for row in rows] == [[2, 3], [2, 3, 4, 5, 6]]


def test_turns_without_prompts_are_separate_rows():
    rows, changes = made((None, [3], [-0.5], {}), (None, [4], [-0.25], {}), group_id="g")
    assert [row["response_ids"] for row in rows] == [[3], [4]]
    assert all("prompt_ids" not in row for row in rows)
    assert changes == {NO_PROMPT: 1}


def test_rows_of_a_trajectory_share_the_group_of_its_first_prompt():
    one, _ = made(([1, 2], [3], None, {}), ([1, 9], [4], None, {}))
    other, _ = made(([1, 2], [5], None, {}))
    apart, _ = made(([1, 9], [4], None, {}))
    groups = [row["group_id"] for row in (*one, *other, *apart)]
    assert groups[0] == groups[1] == groups[2] != groups[3]


def test_values_that_differ_between_turns_are_unknown():
    rows, changes = made(
        ([1], [2], [-0.5], {"temperature": 1.0, "finish_reason": "tool_calls"}),
        ([1, 2], [3], None, {"temperature": 0.5, "finish_reason": "stop"}),
    )
    assert "rollout_log_probs" not in rows[0]
    assert rows[0]["temperature"] is None
    assert rows[0]["finish_reason"] == "stop"
    assert changes["turns of one row differ in temperature: it is unknown"] == 1


def test_lengths_that_differ_are_refused_with_file_line_and_turn():
    with pytest.raises(RcdiagError, match=r"line 7, turn 0: `logps` has 1 values, `tokens` has 2"):
        made(([1], [2, 3], [-0.5], {}))
