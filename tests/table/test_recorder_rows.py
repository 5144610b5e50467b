"""Arguments of a recorder: tensors, padded matrices, ragged lists, single values, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.table.recorder_rows import rows_of

torch = pytest.importorskip("torch")

ROWS = [[11, 12, 13], [21], [], [41, 42]]
LENGTHS = [3, 1, 0, 2]
LOG_PROBS = [[-0.5, -1.25, -0.0], [-3.0], [], [-0.125, -2.0]]  # exact in float16 and bfloat16
PADDED_IDS = [[11, 12, 13, 0], [21, 0, 0, 0], [0, 0, 0, 0], [41, 42, 0, 0]]
PADDED_LOG_PROBS = [[-0.5, -1.25, -0.0, 0], [-3.0, 7, 7, 7], [1, 1, 1, 1], [-0.125, -2.0, 9, 9]]
ATTENTION = [[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]]


def made(**columns: Any) -> dict[str, list]:
    return rows_of(columns).to_pydict()


def refused(**columns: Any) -> RcdiagError:
    with pytest.raises(RcdiagError) as caught:
        rows_of(columns)
    assert caught.value.message.startswith("Recorder.add: ")
    assert caught.value.hint
    return caught.value


IDS = {
    "lists": ROWS,
    "tuples": tuple(map(tuple, ROWS)),
    "arrays": [np.array(row, np.int64) for row in ROWS],
    "objects": np.array([np.array(row, np.int32) for row in ROWS], dtype=object),
    "tensors": [torch.tensor(row, dtype=torch.int64) for row in ROWS],
    "nested": torch.nested.nested_tensor(
        [torch.tensor(row, dtype=torch.int64) for row in ROWS], layout=torch.jagged
    ),
}
FLOATS = {
    "lists": LOG_PROBS,
    "float16": [np.array(row, np.float16) for row in LOG_PROBS],
    "float64": [np.array(row, np.float64) for row in LOG_PROBS],
    "bfloat16": [torch.tensor(row, dtype=torch.bfloat16) for row in LOG_PROBS],
    "with gradients": [torch.tensor(row, requires_grad=True) for row in LOG_PROBS],
}


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_one_response_is_a_batch_of_one_row(kind):
    columns = made(
        response_ids=kind([11, 12]),
        prompt_ids=kind([5]),
        rollout_log_probs=kind([-0.5, -1.25]),
        response_mask=kind([1, 0]),
        policy_version=3,
        group_id="a",
        note="own",
    )
    assert columns == {
        "response_ids": [[11, 12]],
        "prompt_ids": [[5]],
        "rollout_log_probs": [[-0.5, -1.25]],
        "response_mask": [[1, 0]],
        "policy_version": [3],
        "group_id": ["a"],
        "note": ["own"],
    }
    refused(response_ids=kind([11, 12]), old_log_probs=kind([-0.5]))
    refused(response_ids=kind([11, 12]), old_log_probs=[[-0.5, -0.5]])


@pytest.mark.parametrize("floats", FLOATS)
@pytest.mark.parametrize("ids", IDS)
def test_rows_of_different_lengths_are_accepted_in_any_form(ids, floats):
    rows = rows_of({"response_ids": IDS[ids], "old_log_probs": FLOATS[floats]})
    assert rows.to_pydict() == {"response_ids": ROWS, "old_log_probs": LOG_PROBS}
    assert rows.schema.types == [pa.list_(pa.int32()), pa.list_(pa.float32())]


BY_LENGTHS = {"lengths": LENGTHS}
BY_ATTENTION = {"attention_mask": ATTENTION}
BY_MASK = {"response_mask": ATTENTION}
BY_RAGGED_MASK = {"response_mask": [[1] * length for length in LENGTHS]}


@pytest.mark.parametrize(
    ("form", "cutting"),
    [
        (form, cutting)
        for form in (np.array, torch.tensor, list)
        for cutting in (BY_LENGTHS, BY_ATTENTION, {**BY_LENGTHS, **BY_ATTENTION})
    ]
    + [
        (form, cutting)
        for form in (np.array, torch.tensor)  # lists beside a response mask are not cut
        for cutting in (BY_MASK, BY_RAGGED_MASK)
    ],
)
def test_padding_is_cut_by_masks_and_lengths(form, cutting):
    given = {
        name: value if cutting is BY_RAGGED_MASK else form(value) for name, value in cutting.items()
    }
    rows = made(response_ids=form(PADDED_IDS), old_log_probs=form(PADDED_LOG_PROBS), **given)
    assert rows["response_ids"] == ROWS
    assert rows["old_log_probs"] == LOG_PROBS
    assert not {"lengths", "attention_mask"} & set(rows)
    if "response_mask" in cutting:
        assert rows["response_mask"] == [[1] * length for length in LENGTHS]


def test_an_attention_mask_over_prompt_and_response_cuts_both():
    prompts = torch.tensor([[0, 0, 5], [0, 6, 7]])
    responses = torch.tensor([[1, 2, 0], [3, 0, 0]])
    attention = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0]])
    mask = torch.tensor([[1, 0, 0], [1, 0, 0]])
    rows = made(
        response_ids=responses, prompt_ids=prompts, attention_mask=attention, response_mask=mask
    )
    assert rows["prompt_ids"] == [[5], [6, 7]]
    # A tool token at the end of a response is kept, because the attention mask includes it.
    assert rows["response_ids"] == [[1, 2], [3]]
    assert rows["response_mask"] == [[1, 0], [1]]


def test_responses_at_the_right_end_of_a_matrix_are_cut_by_attention():
    rows = made(
        response_ids=np.array([[0, 0, 1], [2, 3, 4]]),
        attention_mask=np.array([[0, 0, 1], [1, 1, 1]]),
        old_log_probs=np.array([[9.0, 9.0, -1.0], [-2.0, -3.0, -4.0]]),
    )
    assert rows["response_ids"] == [[1], [2, 3, 4]]
    assert rows["old_log_probs"] == [[-1.0], [-2.0, -3.0, -4.0]]


def test_prompts_are_cut_by_their_own_mask():
    prompts = torch.tensor([[0, 5], [6, 7]])
    rows = made(response_ids=[[1], [2]], prompt_ids=prompts, prompt_mask=prompts > 0)
    assert rows["prompt_ids"] == [[5], [6, 7]]
    assert "prompt_mask" not in rows


def test_without_a_mask_padding_is_refused():
    error = refused(response_ids=torch.tensor(PADDED_IDS))
    assert "padded" in error.message
    assert "lengths" in error.hint
    error = refused(response_ids=[[1], [2]], prompt_ids=np.ones((2, 3), int))
    assert "prompt_mask" in error.hint
    # A matrix beside ragged tokens is padded too.
    assert "padded" in refused(response_ids=ROWS, old_log_probs=np.zeros((4, 3))).message


def test_one_value_counts_for_all_rows_and_a_column_of_none_is_absent():
    rows = made(
        response_ids=[[1], [2]],
        step=12,
        group_id=np.array(["a", "b"]),
        reward=torch.tensor([1, 0]),
        advantage=[torch.tensor(0.5), -0.5],
        temperature=np.float32(0.5),
        finish_reason=["stop", None],
        engine="replica-0",
        top_k=None,
        top_p=[None, None],
        policy_version=["12", "v7"],
        sample_id=range(2),
    )
    assert rows == {
        "response_ids": [[1], [2]],
        "step": [12, 12],
        "group_id": ["a", "b"],
        "reward": [1.0, 0.0],
        "advantage": [0.5, -0.5],
        "temperature": [0.5, 0.5],
        "finish_reason": ["stop", None],
        "engine": ["replica-0", "replica-0"],
        "policy_version": [12, None],
        "sample_id": [0, 1],
    }


def test_columns_of_the_user_are_kept_as_they_are():
    rows = made(
        response_ids=np.array([[1, 2], [3, 0]]),
        lengths=[2, 1],
        data_source=["math", "code"],
        difficulty=3,
        turns=[{"tools": 1}, {"tools": 0}],
        importance=np.array([[1.0, 2.0], [3.0, 4.0]]),
        features=np.arange(6).reshape(2, 3),
    )
    assert rows["data_source"] == ["math", "code"]
    assert rows["difficulty"] == [3, 3]
    assert rows["turns"] == [{"tools": 1}, {"tools": 0}]
    assert rows["importance"] == [[1.0, 2.0], [3.0]]  # as wide as the response: cut like it
    assert rows["features"] == [[0, 1, 2], [3, 4, 5]]


def test_versions_and_experts_per_token():
    experts = np.arange(2 * 2 * 2 * 3).reshape(2, 2, 2, 3)
    rows = rows_of(
        {
            "response_ids": np.array([[1, 2], [3, 0]]),
            "lengths": [2, 1],
            "policy_version": [[7, 8], [8]],
            "old_routed_experts": experts,
            "rollout_routed_experts": [[[0, 1], [2, 3]], [[4, 5]]],
        }
    )
    assert rows["policy_version"].to_pylist() == [[7, 8], [8]]
    assert rows["old_routed_experts"].to_pylist() == [
        [list(range(6)), list(range(6, 12))],
        [list(range(12, 18))],
    ]
    assert rows["rollout_routed_experts"].to_pylist() == [[[0, 1], [2, 3]], [[4, 5]]]
    assert rows.schema.field("old_routed_experts").type == pa.list_(pa.list_(pa.uint16()))


def test_kept_ids_are_lists_of_lists_or_a_padded_tensor():
    rows = rows_of(
        {
            "response_ids": np.array([[1, 2], [3, 0]]),
            "lengths": [2, 1],
            "rollout_kept_ids": [[[1, 5], np.array([2])], [None]],
            "other_kept_ids": np.array([[[1, 5], [2, -1]], [[3, 4], [-1, -1]]]),
            "late_kept_ids": [[[1], [2]], None],
        }
    )
    assert rows["rollout_kept_ids"].to_pylist() == [[[1, 5], [2]], [[]]]
    assert rows["other_kept_ids"].to_pylist() == [[[1, 5], [2]], [[3, 4]]]
    assert rows["late_kept_ids"].to_pylist() == [[[1], [2]], None]
    assert rows.schema.field("rollout_kept_ids").type == pa.list_(pa.list_(pa.int32()))


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([[[1], [2]], [[3], [4]]], "row 1 of the batch: 2 values for 1 tokens"),
        ([[[1], [2]], [[-3]]], "row 1 of the batch: it holds token id -3"),
        ([[[1], [2]], [["3 4"]]], "it is not a list of ids for each token"),
        ([[1, 2], [3]], "it is not a list of ids for each token"),
    ],
)
def test_kept_ids_of_another_shape_are_refused(kept, message):
    columns = {"response_ids": [[1, 2], [3]], "rollout_kept_ids": kept}
    with pytest.raises(RcdiagError) as caught:
        rows_of(columns)
    assert message in caught.value.message


def test_float64_is_kept_where_float32_would_change_it():
    exact, other = -0.5, -0.1
    for values, kind in (([exact], pa.float32()), ([other], pa.float64())):
        rows = rows_of({"response_ids": [[1]], "old_log_probs": [values]})
        assert rows.schema.field("old_log_probs").type == pa.list_(kind)
        assert rows["old_log_probs"].to_pylist() == [values]


def test_none_among_log_probs_is_nan():
    (row,) = made(response_ids=[[1, 2]], rollout_log_probs=[[-1.0, None]])["rollout_log_probs"]
    assert row[0] == -1.0
    assert np.isnan(row[1])


def test_a_row_without_log_probs_is_null():
    rows = made(response_ids=[[1, 2], [3]], rollout_log_probs=[None, [-1.0]])
    assert rows["rollout_log_probs"] == [None, [-1.0]]


def test_rows_do_not_change_with_their_source_tensors():
    ids, log_probs, reward = np.array([[1, 2]]), torch.tensor([[-1.0, -2.0]]), np.array([1.0])
    rows = rows_of(
        {"response_ids": ids, "lengths": [2], "old_log_probs": log_probs, "reward": reward}
    )
    before = rows.to_pydict()
    ids[:], reward[:] = 9, 9
    log_probs.fill_(-9)
    assert rows.to_pydict() == before


@pytest.mark.parametrize("cutting", [{}, {"lengths": [2]}])
def test_rows_do_not_change_with_arrays_of_the_user(cutting):
    numbers = np.array([[5, 6]])
    rows = rows_of({"response_ids": [[1, 2]], "numbers": numbers, **cutting})
    numbers[:] = 9
    assert rows["numbers"].to_pylist() == [[5, 6]]


WRONG = {
    "a value too few": (
        {"old_log_probs": [[-1.0, -1.0], [-1.0], [], [-1.0]]},
        r"`old_log_probs`, row 0 of the batch: 2 values for 3 tokens",
    ),
    "a row too few": ({"old_log_probs": LOG_PROBS[:3]}, "`old_log_probs`: it has 3 rows"),
    "a step too few": ({"step": [1, 2]}, "`step`: 2 values for 4 rows"),
    "integers for log-probs": ({"old_log_probs": ROWS}, "`old_log_probs`: it holds int"),
    "one log-prob for each row": ({"old_log_probs": [-1.0] * 4}, "not one value per token"),
    "advantages by row": ({"advantages": np.ones(4)}, "not one value per token"),
    "a mask of twos": ({"response_mask": [[1, 2, 1], [1], [], [1, 1]]}, "row 0 of the batch"),
    "a step of text": ({"step": ["a"] * 4}, "`step`"),
    "half a step": ({"step": 1.5}, "`step`"),
    "a group that is a float": ({"group_id": 1.5}, "`group_id`, row 0 of the batch: it is 1.5"),
    "two kinds of groups": ({"group_id": ["a", 1, "b", "c"]}, "`group_id`, row 1"),
    "a reward of text": ({"reward": ["good"] * 4}, "`reward`"),
    "a prompt too few": ({"prompt_ids": [[1]]}, "`prompt_ids`: it has 1 rows"),
    "a slip of the pen": ({"rewards": [1.0] * 4}, "`rewards` is no column that rcdiag reads"),
    "a log-prob too few": ({"rollout_log_prob": LOG_PROBS}, "`rollout_log_prob` is no column"),
    "another word": ({"sampling_per_token_logps": LOG_PROBS}, "is no column that rcdiag reads"),
    "a temperature below 0": ({"temperature": -1}, "`temperature`, row 0 of the batch: it is -1"),
    "no temperature": ({"temperature": [1.0, 1.0, 0.0, 1.0]}, "`temperature`, row 2 of the batch"),
    "a temperature of NaN": ({"temperature": float("nan")}, "`temperature`, row 0 of the batch"),
    "a temperature of text": ({"temperature": "hot"}, "`temperature`, row 0 of the batch"),
    "more than all": ({"top_p": [0.9, 1.5, 1, 1]}, "`top_p`, row 1 of the batch: it is 1.5"),
    "nothing kept": ({"top_p": 0}, "`top_p`, row 0 of the batch"),
    "a share above 1": ({"min_p": 2.0}, "`min_p`, row 0 of the batch: it is 2.0"),
    "half a token kept": ({"top_k": [1, 2, 3, 0.5]}, "`top_k`, row 3 of the batch: it is 0.5"),
    "fewer than none": ({"top_k": -5}, "`top_k`, row 0 of the batch: it is -5"),
    "a step before the first": ({"step": [0, 1, -1, 2]}, "`step`, row 2 of the batch: it is -1"),
    "a step beyond int64": ({"step": 2**70}, "`step`, row 0 of the batch"),
    "a truth for a step": ({"step": True}, "`step`, row 0 of the batch: it is True"),
    "some without a group": ({"group_id": ["a", None, "b", "b"]}, "`group_id`, row 1 of the batch"),
    "some without a prompt": ({"prompt_ids": [[1], [1], None, [1]]}, "`prompt_ids`, row 2"),
    "an endless reward": ({"reward": [0, 1, float("inf"), 1]}, "`reward`, row 2 of the batch"),
    "advantages of two kinds": ({"advantage": [0.5, "x", 1, 1]}, "`advantage`, row 1 of the batch"),
    "text among numbers": ({"note": [1, 2.5, "x", 3]}, "`note`, row 2 of the batch"),
    "a number beyond int64": ({"note": [1, 2.5, 3, 2**70]}, "`note`, row 3 of the batch"),
    "a log-prob for an entropy": ({"old_entropy": LOG_PROBS}, "`old_entropy`, row 0 of the batch"),
    "no token of a vocabulary": ({"prompt_ids": [[1], [1 << 20], [], []]}, "`prompt_ids`, row 1"),
    "experts of many widths": (
        {"old_routed_experts": [[[1], [1, 2], [1]], [[1]], [], [[1]] * 2]},
        "`old_routed_experts`, row 0 of the batch",
    ),
    "experts of two widths": (
        {"old_routed_experts": [[[1]] * 3, [[1, 2]], [], [[1]] * 2]},
        "1 experts of a token in one row and 2 in another",
    ),
    "negative experts": ({"old_routed_experts": [[[-1]] * n for n in LENGTHS]}, "from -1 to -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_inconsistent_arguments_are_named(case):
    columns, message = WRONG[case]
    assert message.strip("`") in refused(response_ids=ROWS, **columns).message


def test_hints_name_the_closest_column():
    hint = refused(response_ids=ROWS, rollout_logprobs=LOG_PROBS).hint
    assert "did you mean rollout_log_probs?" in hint
    hint = refused(response_ids=ROWS, sampling_per_token_logps=LOG_PROBS).hint
    assert "did you mean sampling_log_probs?" in hint
    assert "rollout_log_probs" in hint
    assert "completion_ids" in refused(completion_ids=ROWS).hint
    assert "advantage=" in refused(response_ids=ROWS, advantages=np.ones(4)).hint
    assert "did you mean steps" not in refused(response_ids=ROWS, stepp=[1] * 4).hint
    assert "did you mean step?" in refused(response_ids=ROWS, stepp=[1] * 4).hint


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 3.5], "a list of int, but rows of tokens are needed"),
        (5, "one int"),
        (torch.tensor([1.0, 2.0]), "it holds float32"),
        ([[1.0, 2.0]], "it holds float64"),
        ([["a"]], "it holds"),
        ([[1], [-1]], "row 1 of the batch: it holds token id -1"),
        ([[1], [2**31]], "row 1 of the batch: it holds token id 2147483648"),
        ([[1], None], "row 1 of the batch: None"),
    ],
)
def test_invalid_tokens(ids, message):
    assert message in refused(response_ids=ids).message


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"lengths": [5, 1, 0, 2]}, "`lengths`, row 0 of the batch: 5"),
        ({"lengths": [3, 1]}, "`lengths`: it is a list of int"),
        ({"lengths": [3.0, 1.0, 0.0, 2.0]}, "`lengths`: it is"),
        ({"attention_mask": np.array([[1, 0, 1, 0]] * 4)}, "it is 0 at column 1, between ones"),
        ({"attention_mask": np.array([[1, 1, 1]] * 4)}, "it has 3 columns, `response_ids` 4"),
        ({"attention_mask": np.array([[1, 2, 0, 0]] * 4)}, "row 0 of the batch: it holds 2"),
        ({"attention_mask": ATTENTION, "lengths": [3, 1, 1, 2]}, "`lengths`, row 2 of the batch"),
        ({"response_mask": np.ones((4, 3))}, "`response_mask`: it is an array [4, 3]"),
        (
            {"lengths": LENGTHS, "old_log_probs": np.zeros((4, 5))},
            "`old_log_probs`: it has 5 columns, but the mask or lengths that cut it are for 4",
        ),
    ],
)
def test_inconsistent_masks_and_lengths(columns, message):
    assert message in refused(response_ids=np.array(PADDED_IDS), **columns).message


def test_valid_values_are_accepted():
    columns = made(
        response_ids=ROWS,
        rollout_log_probs=[[float("nan"), 0.5, -float("inf")], [-1.0], [], [-1.0, -1.0]],
        old_entropy=[[-9.0, 0.0, 1.5], [1.0], [], [1.0, 1.0]],
        response_mask=[[0, 1, 1], [1], [], [1, 1]],  # values at masked tokens are not checked
        reward=[float("nan"), None, True, -3],
        advantage=np.float32(-0.5),
        top_k=-1,
        top_p=1,
        min_p=0.0,
        temperature=[None, 0.7, 1, 2],
        group_id=[None] * 4,
    )
    assert columns["reward"][1:] == [None, 1.0, -3.0]
    assert columns["temperature"] == [None, 0.7, 1.0, 2.0]
    assert columns["rollout_log_probs"][0][1:] == [0.5, -float("inf")]
    assert "group_id" not in columns


def test_experts_of_empty_responses_are_a_matrix_too():
    columns = made(
        response_ids=np.zeros((2, 3), np.int64),
        lengths=[0, 0],
        rollout_routed_experts=np.ones((2, 3, 4, 2), np.uint16),
    )
    assert columns == {"response_ids": [[], []], "rollout_routed_experts": [[], []]}


SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "text by row": ({"old_log_probs": np.array(["a", "a"])}, "not one value per token"),
    "a number among lists": ({"prompt_ids": [[1], np.float32(1.0)]}, "not one value per token"),
    "lists of lengths": ({"lengths": [[], [1]]}, "`lengths`: it is a list of list"),
    "a mask by row": ({"response_mask": [[1], 5]}, "`response_mask`: it is a list of list"),
    "a mask of one number": ({"response_mask": range(2)}, "`response_mask`: it is a list of int"),
    "a mask of lists": ({"prompt_mask": [[[1], 1], [0, 1]]}, "`prompt_mask`: it is a list of list"),
    "own numbers too large": ({"features": [2**70, 0]}, "`features`"),
    "a reward too large": ({"reward": [2**70, 0]}, "`reward`"),
    "own complex numbers": (
        {"lengths": [1, 2], "features": np.ones((2, 2), complex)},
        "`features`",
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_values_of_other_shapes_are_refused(case):
    columns, message = SHAPES[case]
    ids = [[1, 2], [3, 4]]
    cut = "response_mask" in columns  # it cuts a matrix
    assert message in refused(response_ids=np.array(ids) if cut else ids, **columns).message


def test_a_single_number_in_place_of_rows_is_refused():
    assert "rows of tokens are needed" in refused(response_ids=[np.array(3)], lengths=[1]).message


def test_responses_without_a_column_are_empty():
    columns = made(response_ids=np.zeros((2, 0), int), response_mask=np.zeros((2, 0), int))
    assert columns == {"response_ids": [[], []], "response_mask": [[], []]}
