"""prime-rl's token exports and traces, each alone and joined by tokens."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rcdiag.table.readers.prime_rl import PRIME_RL
from tests.table.readers.rows_of import drawn_floats, refusal, rows_of, write_lines


def exported(prompt, response, mask, r, t, step=3, **fields):
    """Return a line of a token export: whole sequences, with a filler at trainer position 0."""
    length, zeros = len(prompt) + len(response), [0.0] * len(prompt)
    return {
        "schema_version": 1,
        "step": step,
        "rank": 0,
        "micro_step": 0,
        "micro_sequence_idx": 0,
        "export_sequence_idx": 0,
        "env_name": "math",
        "token_ids": prompt + response,
        "position_ids": list(range(length)),
        "loss_mask": [False] * len(prompt) + [bool(value) for value in mask],
        "advantages": zeros + [0.5] * len(response),
        "inference_logprobs": zeros + r,
        "trainer_logprobs": [-math.log(1000)] + [-2.0] * (len(prompt) - 1) + t,
        "entropy": [0.25] * length,
        "mismatch_kl": [0.0] * length,
        "log_importance_ratio": zeros + [b - a for a, b in zip(r, t, strict=True)],
        "ce_weights": [None] * length,
    } | fields


def node(parent, tokens, mask, log_probs=(), **fields):
    """Return a message of a trace; verifiers omit null fields."""
    made = {
        "message": {"role": "assistant" if any(mask) else "user", "content": "..."},
        "sampled": any(mask),
        "timestamp": 0.5,
        "token_ids": tokens,
        "mask": [bool(value) for value in mask],
        "is_content": [],
        "logprobs": list(log_probs),
    } | fields
    return made if parent is None else made | {"parent": parent}


def trace(nodes, temperatures=(0.7,), **fields):
    sampled = [place for place, one in enumerate(nodes) if one["sampled"]]
    temperatures = list(temperatures) * (len(sampled) // len(temperatures))
    return {
        "version": 1,
        "id": "t",
        "task": {"type": "Math", "data": {}},
        "agent": {"config": {}, "name": "agent", "trainable": True},
        "nodes": nodes,
        "calls": [
            {"node": place, "sampling": {"temperature": temperature}, "finish_reason": "stop"}
            for place, temperature in zip(sampled, temperatures, strict=True)
        ],
        "rewards": {"right": {"score": 1.0, "weight": 0.5}, "format": {"score": 2.0}},
        "metrics": {},
        "is_completed": True,
        "ok": True,
        "errors": [],
    } | fields


def episode(*traces, group="g1", step=3, start=7, end=7, **fields):
    return {
        "id": "e",
        "env": {"id": "gsm8k", "name": "math"},
        "task": {"type": "Math", "data": {}},
        "group": {"id": group},
        "run": {
            "type": "train",
            "id": "r",
            "work": {"type": "train", "step": step, "policy": {"start": start, "end": end}},
        },
        "ok": True,
        "errors": [],
        "traces": list(traces),
    } | fields


SINGLE = [node(None, [1, 2], [0, 0]), node(0, [3, 4, 5], [0, 1, 1], [-0.1234, -0.5])]


def test_cells_of_an_export(tmp_path):
    rng = np.random.default_rng(0)
    r, t = drawn_floats(rng, 4), drawn_floats(rng, 4)
    line = exported([1, 2, 3], [4, 5, 6, 7], [1, 0, 0, 1], r, t)
    result = rows_of(PRIME_RL, write_lines(tmp_path / "rank_0.jsonl", [line]))
    assert result.rows == [
        {
            "prompt_ids": [1, 2, 3],
            "response_ids": [4, 5, 6, 7],
            "response_mask": [1, 0, 0, 1],
            "rollout_log_probs": r,
            "old_log_probs": t,
            "old_entropy": [0.25] * 4,
            "advantages": [0.5] * 4,
            "step": 3,
            "env_name": "math",
        }
    ]
    assert result.changes == {}


def test_steps_and_ranks_of_an_export_are_in_order(tmp_path):
    for step in (10, 9):
        for rank in (11, 2):
            line = exported([1], [rank], [1], [-0.5], [-0.25], step=step)
            write_lines(tmp_path / f"token_exports/step_{step}/rank_{rank}.jsonl", [line])
    (tmp_path / "token_exports/step_9/STABLE").touch()
    result = rows_of(PRIME_RL, *tmp_path.rglob("*.jsonl"))
    order = [(row["step"], row["response_ids"][0]) for row in result.rows]
    assert order == [(9, 2), (9, 11), (10, 2), (10, 11)]
    assert list(result.changes) == [
        "step 10 has no STABLE marker: its token export may be incomplete"
    ]


def test_a_step_without_the_file_of_a_rank_is_reported(tmp_path):
    for step, rank in ((9, 0), (9, 2), (10, 0)):
        line = exported([1], [rank], [1], [-0.5], [-0.25], step=step)
        file = write_lines(tmp_path / f"token_exports/step_{step}/rank_{rank}.jsonl", [line])
        (file.parent / "STABLE").touch()
    result = rows_of(PRIME_RL, *tmp_path.rglob("*.jsonl"))
    (text,) = result.changes
    assert text.startswith("step 10 has no file of rank 2, but another step has")


def test_null_stands_for_values_that_are_not_finite(tmp_path):
    line = exported([1], [2, 3], [1, 1], [-0.5, -0.25], [-0.5, -0.25])
    line["trainer_logprobs"][2] = None
    result = rows_of(PRIME_RL, write_lines(tmp_path / "rank_0.jsonl", [line]))
    values = result.rows[0]["old_log_probs"]
    assert values[0] == -0.5
    assert math.isnan(values[1])
    assert list(result.changes.values()) == [1]


def test_distillation_has_no_log_probs_of_the_sampler(tmp_path):
    line = exported([1], [2, 3], [1, 1], [0.0, 0.0], [-0.5, -0.25])
    line["log_importance_ratio"] = [None] * 3
    result = rows_of(PRIME_RL, write_lines(tmp_path / "rank_0.jsonl", [line]))
    assert "rollout_log_probs" not in result.rows[0]
    assert result.rows[0]["old_log_probs"] == [-0.5, -0.25]


def test_tokens_of_cross_entropy_were_not_sampled(tmp_path):
    line = exported([1], [2, 3], [1, 1], [-0.5, -0.25], [-0.5, -0.25])
    line["ce_weights"] = [0.0, 0.0, 1.0]
    result = rows_of(PRIME_RL, write_lines(tmp_path / "rank_0.jsonl", [line]))
    assert result.rows[0]["response_mask"] == [1, 0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inference_logprobs": [0.0]}, "`inference_logprobs` has 1 values, `token_ids` has 3"),
        ({"loss_mask": [True]}, "`loss_mask` has 1 values, `token_ids` has 3"),
        ({"token_ids": [1, 2, "3"]}, "`token_ids[2]`: expected int, got str"),
        ({"entropy": [True, 0, 0]}, "`entropy[0]`: expected float | null, got bool"),
        ({"schema_version": 2}, "a token export of schema version 2"),
    ],
)
def test_broken_exports_are_refused(tmp_path, fields, message):
    good = exported([1], [2, 3], [1, 1], [-0.5, -0.25], [-0.5, -0.25])
    file = write_lines(tmp_path / "rank_0.jsonl", [good, good | fields])
    assert f"rank_0.jsonl, line 2: {message}" in refusal(PRIME_RL, file)


def test_cells_of_a_trace(tmp_path):
    file = write_lines(tmp_path / "step_12/train/all/traces.jsonl", [episode(trace(SINGLE))])
    result = rows_of(PRIME_RL, file)
    (row,) = result.rows
    assert np.allclose(row.pop("rollout_log_probs"), [-0.1234, -0.5], atol=0, rtol=1e-7)
    assert row == {
        "prompt_ids": [1, 2, 3],
        "response_ids": [4, 5],
        "response_mask": [1, 1],
        "reward": 2.5,
        "temperature": 0.7,
        "finish_reason": "stop",
        "group_id": "g1",
        "step": 12,
        "env_name": "math",
        "policy_version": 7,
    }
    assert result.policies == {"rollout": {"decimals": 4}}
    assert [text for text in result.changes if "rounded to 4 decimals" in text]


def test_numbers_of_sampled_tokens_are_spread_over_turns(tmp_path):
    nodes = [
        *SINGLE,
        node(1, [6, 7], [0, 0]),
        node(2, [8, 9], [0, 1], [-0.123456], advantages=[0.25], trainer_logprobs=[-2.0]),
    ]
    nodes[1] |= {"advantages": [1.0, 2.0], "trainer_logprobs": [-0.5, -0.75]}
    result = rows_of(PRIME_RL, write_lines(tmp_path / "traces.jsonl", [trace(nodes)]))
    (row,) = result.rows
    assert row["response_ids"] == [4, 5, 6, 7, 8, 9]
    assert row["response_mask"] == [1, 1, 0, 0, 0, 1]
    expected = np.array([-0.1234, -0.5, 0, 0, 0, -0.123456], np.float32)
    assert np.array_equal(row["rollout_log_probs"], expected)
    assert row["advantages"] == [1.0, 2.0, 0.0, 0.0, 0.0, 0.25]
    assert row["old_log_probs"] == [-0.5, -0.75, 0.0, 0.0, 0.0, -2.0]
    assert result.policies == {}


def test_missing_log_probs_of_a_turn_are_not_invented(tmp_path):
    nodes = [*SINGLE, node(1, [8, 9], [0, 1], [])]
    row = rows_of(PRIME_RL, write_lines(tmp_path / "traces.jsonl", [trace(nodes)])).rows[0]
    assert "rollout_log_probs" not in row


def test_each_branch_is_a_row(tmp_path):
    nodes = [
        *SINGLE,
        node(1, [6], [1], [-0.25]),
        node(1, [7], [1], [-0.75]),
        node(None, [9], [0]),
        node(4, [10], [1], [-1.0]),
    ]
    result = rows_of(PRIME_RL, write_lines(tmp_path / "traces.jsonl", [trace(nodes)]))
    assert result.column("response_ids") == [[4, 5, 6], [4, 5, 7], [10]]
    assert result.column("prompt_ids") == [[1, 2, 3], [1, 2, 3], [9]]
    assert [rows for text, rows in result.changes.items() if "share" in text] == [1]


def test_samples_that_are_not_trained_on_are_left_out(tmp_path):
    lines = [
        episode(trace(SINGLE, agent={"name": "judge", "trainable": False}), trace(SINGLE)),
        episode(trace([node(None, [1], [0])])),
        episode(trace(SINGLE, errors=[{"type": "E", "message": "m"}])),
    ]
    result = rows_of(PRIME_RL, write_lines(tmp_path / "traces.jsonl", lines))
    assert result.numbers == [1, 3]
    assert result.column("response_mask") == [[1, 1], [0, 0]]


def test_empty_episodes_and_traces_are_counted(tmp_path):
    lines = [episode(trace(SINGLE)), episode(), episode(trace([]), trace(SINGLE))]
    result = rows_of(PRIME_RL, write_lines(tmp_path / "traces.jsonl", lines))
    assert result.numbers == [1, 3]
    assert [rows for text, rows in result.changes.items() if "without traces" in text] == [2]


def test_calls_of_other_temperatures_leave_it_unknown(tmp_path):
    nodes = [*SINGLE, node(1, [8], [1], [-0.5])]
    file = write_lines(tmp_path / "traces.jsonl", [trace(nodes, (0.7, 1.0))])
    result = rows_of(PRIME_RL, file)
    assert "temperature" not in result.rows[0]
    assert [text for text in result.changes if "temperature" in text]


def test_weights_that_changed_while_sampling(tmp_path):
    file = write_lines(tmp_path / "traces.jsonl", [episode(trace(SINGLE), start=7, end=9)])
    row = rows_of(PRIME_RL, file).rows[0]
    assert "policy_version" not in row
    assert (row["first_policy_version"], row["last_policy_version"]) == (7, 9)
    assert row["step"] == 3


def test_rewards_that_were_not_computed_are_null(tmp_path):
    file = write_lines(tmp_path / "traces.jsonl", [episode(trace(SINGLE, rewards={"right": None}))])
    assert "reward" not in rows_of(PRIME_RL, file).rows[0]
    rewards = {"right": {"score": None, "weight": 2.0}, "late": {"weight": 3.0}}
    one = episode(trace(SINGLE, rewards=rewards))
    other = episode(trace(SINGLE, rewards={**rewards, "form": {"score": 0.5, "weight": 4.0}}))
    file = write_lines(tmp_path / "traces.jsonl", [one, other])
    assert rows_of(PRIME_RL, file).column("reward") == [None, 2.0]


def test_effective_traces_are_read_in_place_of_all_and_never_those_of_evaluations(tmp_path):
    for part in ("train/all", "train/effective", "eval/all"):
        write_lines(tmp_path / f"rollouts/step_4/{part}/traces.jsonl", [episode(trace(SINGLE))])
    result = rows_of(PRIME_RL, *tmp_path.rglob("*.jsonl"))
    assert len(result.rows) == 1
    assert [text for text in result.changes if "(2 files)" in text]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parent": 5}, "line 1, trace 0, node 1: its `parent` is 5"),
        ({"parent": 1}, "line 1, trace 0, node 1: its `parent` is 1"),
        ({"logprobs": [-0.5]}, "`logprobs` has 1 values, `sampled tokens of mask` has 2"),
        ({"mask": [True]}, "`mask` has 1 values, `token_ids` has 3"),
        ({"token_ids": [1, 2, 2**40]}, "`traces[...].nodes[...].token_ids[2]`: expected int <="),
    ],
)
def test_broken_traces_are_refused(tmp_path, change, message):
    nodes = [SINGLE[0], SINGLE[1] | change]
    file = write_lines(tmp_path / "traces.jsonl", [episode(trace(nodes))])
    text = refusal(PRIME_RL, file)
    assert message.replace("...", "0", 1).replace("...", "1", 1) in text


def test_older_records_of_verifiers_are_refused(tmp_path):
    file = write_lines(tmp_path / "traces.jsonl", [{"agent": {}, "nodes": None}])
    assert "no `nodes`" in refusal(PRIME_RL, file)


@pytest.fixture
def joined(tmp_path) -> list[Path]:
    """Write two steps of exports and traces, with the same tokens in both steps."""
    files = []
    for step in (2, 11):
        lines = [
            exported([1, 2, 3], [4, 5], [1, 1], [-0.25, -0.5], [-0.125, -0.5], step=step),
            exported([1, 2, 3], [8, 9], [1, 1], [-1.25, -0.5], [-1.125, -0.5], step=step),
        ]
        files.append(write_lines(tmp_path / f"token_exports/step_{step}/rank_0.jsonl", lines))
        (tmp_path / f"token_exports/step_{step}/STABLE").touch()
        other = [node(None, [1, 2], [0, 0]), node(0, [3, 6], [0, 1], [-0.5])]
        episodes = [
            episode(trace(SINGLE), group=f"g{step}", step=step),
            episode(trace(other), group=f"g{step}", step=step),
        ]
        path = tmp_path / f"rollouts/step_{step}/train/effective/traces.jsonl"
        files.append(write_lines(path, episodes))
    return files


def test_exports_take_groups_and_rewards_from_traces_with_their_tokens(joined):
    result = rows_of(PRIME_RL, *joined)
    assert result.column("step") == [2, 2, 11, 11]
    assert result.column("group_id") == ["g2", "g2", "g11", "g11"]
    assert result.column("reward") == [2.5, None, 2.5, None]
    assert result.column("temperature") == [0.7, None, 0.7, None]
    assert result.rows[0]["rollout_log_probs"] == [-0.25, -0.5]
    assert sorted(result.changes.values()) == [2, 2, 2]
    assert result.policies == {}


def test_equal_sequences_of_one_step_take_one_trace_each(tmp_path):
    line = exported([1, 2, 3], [4, 5], [1, 1], [-0.25, -0.5], [-0.125, -0.5])
    export = write_lines(tmp_path / "rank_0.jsonl", [line, line])
    rewards = [{"right": {"score": float(score)}} for score in (0, 1)]
    lines = [episode(trace(SINGLE, rewards=reward), group="g") for reward in rewards]
    traces = write_lines(tmp_path / "traces.jsonl", lines)
    assert rows_of(PRIME_RL, export, traces).column("reward") == [0.0, 1.0]


def micro_batch(*sequences, padding=0, experts=None, **fields):
    """Return a micro-batch as encoded by prime-rl 559b4477: sequences, then padding."""

    def joined(name, filler):
        return [value for one in sequences for value in one[name]] + [filler] * padding

    ids = joined("ids", 0)
    batch = {
        "input_ids": ids,
        "loss_mask": joined("mask", False),
        "advantages": joined("advantages", 0.0),
        "inference_logprobs": joined("r", 0.0),
        "position_ids": list(range(len(ids))),
        "sequence_lengths": [len(one["ids"]) for one in sequences],
        "temperatures": joined("temperatures", 1.0),
        "env_names": ["math"] * len(ids),
        "seq_lens": [len(ids)],
    } | fields
    return [*batch.values(), None, experts, None, None, None, joined("ce", 0.0)]


def packed(prompt, response, mask, r, temperature=0.7, ce=0.0):
    length, zeros = len(prompt) + len(response), [0.0] * len(prompt)
    return {
        "ids": prompt + response,
        "mask": [False] * len(prompt) + [bool(value) for value in mask],
        "r": zeros + r,
        "advantages": zeros + [0.5] * len(response),
        "temperatures": [1.0] * len(prompt) + [temperature] * len(response),
        "ce": [0.0] * (length - 1) + [ce],
    }


def save_batches(folder, step, *batches, rank=0):
    path = folder / "rollouts" / f"step_{step}" / f"rank_{rank}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.msgpack.encode(list(batches)))
    return path


def test_packed_sequences_of_micro_batches(tmp_path):
    one = packed([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0.0, -0.25])
    two = packed([9], [8], [1], [-2.0], temperature=1.0)
    batch, empty = micro_batch(one, two, padding=3), micro_batch(packed([7], [7], [0], [0.0]))
    result = rows_of(PRIME_RL, save_batches(tmp_path, 12, batch, empty))
    assert result.column("prompt_ids") == [[1, 2], [9]]
    assert result.column("response_ids") == [[3, 4, 5], [8]]
    assert result.column("response_mask") == [[1, 0, 1], [1]]
    assert result.column("rollout_log_probs") == [[-0.5, 0.0, -0.25], [-2.0]]
    assert result.column("advantages") == [[0.5] * 3, [0.5]]
    assert result.column("temperature") == pytest.approx([0.7, 1.0])
    assert result.column("step") == [12, 12]
    assert "old_log_probs" not in result.rows[0]
    assert [rows for text, rows in result.changes.items() if "without any trained" in text] == [1]


def test_experts_and_copied_tokens_of_micro_batches(tmp_path):
    experts = np.arange(1, 4 * 2 * 2 + 1, dtype=np.uint8).reshape(4, 2, 2)
    one = packed([1], [3, 4, 5], [1, 1, 1], [-0.5, -1.0, -0.25], ce=1.0)
    encoded = [experts.tobytes(), list(experts.shape), "uint8"]
    result = rows_of(PRIME_RL, save_batches(tmp_path, 1, micro_batch(one, experts=encoded)))
    assert result.column("rollout_routed_experts") == [experts.reshape(4, 4)[1:].tolist()]
    assert result.column("response_mask") == [[1, 1, 0]]


def test_micro_batches_are_not_read_beside_an_export(tmp_path):
    line = exported([1, 2], [3], [1], [-0.5], [-0.75])
    export = write_lines(tmp_path / "token_exports" / "step_3" / "rank_0.jsonl", [line])
    batches = save_batches(tmp_path, 3, micro_batch(packed([1, 2], [3], [1], [-0.5])))
    result = rows_of(PRIME_RL, export, batches)
    assert result.column("old_log_probs") == [[-0.75]]
    assert any("micro-batches hold the same sequences" in text for text in result.changes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"advantages": [0.5]}, "`advantages` has 1 values for 3 tokens"),
        ({"sequence_lengths": [9]}, "do not fit 3 tokens"),
        ({"loss_mask": [0, 0, 0.5]}, "a mask holds only 0 and 1"),
        ({"temperatures": "text"}, "not a file of micro-batches"),
    ],
)
def test_broken_micro_batches_are_refused(tmp_path, fields, message):
    batch = micro_batch(packed([1, 2], [3], [1], [-0.5]), **fields)
    path = save_batches(tmp_path, 3, batch)
    assert message in refusal(PRIME_RL, path)


def test_a_file_of_batches_that_is_cut_off_is_refused(tmp_path):
    path = save_batches(tmp_path, 3, micro_batch(packed([1, 2], [3], [1], [-0.5])))
    path.write_bytes(path.read_bytes()[:-20])
    assert "not a file of micro-batches" in refusal(PRIME_RL, path)


def test_sampling_masks_of_micro_batches(tmp_path):
    """After ref_kl_weights since PR 3431: ids and counts of all tokens as int32 bytes."""
    one = packed([1, 2], [3, 4], [1, 1], [-0.5, -1.0])
    counts, ids = np.array([0, 0, 2, 1], "<i4"), np.array([3, 7, 4], "<i4")
    batch = [*micro_batch(one), None, [ids.tobytes(), counts.tobytes()], ["t1"]]
    result = rows_of(PRIME_RL, save_batches(tmp_path, 1, batch))
    assert result.column("rollout_kept_ids") == [[[3, 7], [4]]]
    wrong = [*micro_batch(one), None, [ids.tobytes(), counts[:3].tobytes()]]
    assert "sampling_mask has 3 counts" in refusal(PRIME_RL, save_batches(tmp_path, 2, wrong))
