"""Whole folders of a run, as trainers leave them, are opened as one table."""

import json

import numpy as np
import torch

import rcdiag
from tests.table.readers import test_miles as miles
from tests.table.readers import test_nemo_rl as nemo
from tests.table.readers import test_prime_rl as prime
from tests.table.readers import test_slime as slime
from tests.table.readers import test_tinker as tinker
from tests.table.readers.rows_of import column, drawn_floats, write_lines


def test_the_log_folder_of_nemo_rl(tmp_path):
    rng = np.random.default_rng(0)
    for step in (1, 2, 10):
        lines = [
            nemo.sample([1, k // 2], [3, 4], [1, 1], *(drawn_floats(rng, 2) for _ in range(3)))
            for k in range(4)
        ]
        write_lines(tmp_path / "exp_001" / f"train_data_step{step}.jsonl", lines)
    write_lines(tmp_path / "exp_001" / "val_data_step1.jsonl", [{"content": ["a"], "rewards": [1]}])
    table = rcdiag.open_table(tmp_path)
    assert column(table, "step") == [1] * 4 + [2] * 4 + [10] * 4
    assert len(set(column(table, "group_id"))) == 6


def test_the_output_folder_of_prime_rl(tmp_path):
    lines = [prime.exported([1, 2, 3], [4, 5], [1, 1], [-0.25, -0.5], [-0.125, -0.5])]
    write_lines(tmp_path / "token_exports/step_3/rank_0.jsonl", lines)
    (tmp_path / "token_exports/step_3/STABLE").touch()
    for part in ("train/all", "train/effective", "eval/all"):
        file = tmp_path / f"rollouts/step_3/{part}/traces.jsonl"
        write_lines(file, [prime.episode(prime.trace(prime.SINGLE))])
    table = rcdiag.open_table(tmp_path)
    assert column(table, "group_id") == ["g1"]
    assert table.policies == ["rollout", "old"]


def test_traces_with_rounded_log_probs_are_scored(tmp_path):
    rng = np.random.default_rng(0)
    episodes = []
    for group in range(8):
        for _ in range(4):
            r = np.round(drawn_floats(rng, 6), 4).tolist()
            t = np.round(np.array(r) + rng.normal(0, 0.01, 6), 4).tolist()
            nodes = [
                prime.node(None, [1, group], [0, 0]),
                prime.node(0, rng.integers(0, 99, 6).tolist(), [1] * 6, r, trainer_logprobs=t),
            ]
            episodes.append(prime.episode(prime.trace(nodes), group=f"g{group}"))
    file = write_lines(tmp_path / "traces.jsonl", episodes)
    result = rcdiag.score(rcdiag.open_table(file))
    assert result.num_sequences == 32


def test_a_details_folder_of_slime(tmp_path):
    rng = np.random.default_rng(0)
    for step in (0, 1):
        numbers = [(drawn_floats(rng, 2), drawn_floats(rng, 2)) for _ in range(4)]
        rollouts = [slime.sample(k, [1], [2, k], r, k // 2) for k, (r, _) in enumerate(numbers)]
        slime.save_rollout(tmp_path, step, rollouts)
        slime.save_rollout(tmp_path, step, rollouts, name="eval_{}.pt")
        training = [slime.trained(k, k, [1], [2, k], r, t) for k, (r, t) in enumerate(numbers)]
        slime.save_train(tmp_path, step, training, raw_reward=[0.0, 1.0, 2.0, 3.0])
    table = rcdiag.open_table(tmp_path)
    assert column(table, "reward") == [0.0, 1.0, 2.0, 3.0] * 2
    assert column(table, "group_id") == [0, 0, 1, 1] * 2
    assert set(table.policies) == {"rollout", "old", "ref"}


def test_a_details_folder_of_miles(tmp_path):
    rng = np.random.default_rng(0)
    samples = [miles.drawn(rng, k, 2, 5) for k in range(4)]
    rollouts = [
        slime.sample(index, prompt, response, values["rollout_log_probs"], index // 2)
        for index, prompt, response, values in samples
    ]
    slime.save_rollout(tmp_path, 3, rollouts, metadata={})
    miles.save_dashboard(tmp_path, 3, rollouts)
    for rank in range(4):
        half = samples[:2] if rank < 2 else samples[2:]
        miles.save_rank(tmp_path, 3, rank, half, rank % 2, 2)
    write_lines(tmp_path / "trajectory/3.jsonl", [{"sample_index": 0, "messages": []}])
    (tmp_path / "policy_loss_debug").mkdir()
    torch.save(
        {"rank": 0, "call": 0, "samples": []}, tmp_path / "policy_loss_debug/rank_0_call_0.pt"
    )
    table = rcdiag.open_table(tmp_path)
    assert column(table, "sample_index") == [0, 1, 2, 3]
    assert column(table, "old_log_probs") == [values["log_probs"] for *_, values in samples]
    assert column(table, "group_id") == [0, 0, 1, 1]


def test_a_capture_folder_of_tinker(tmp_path):
    tinker.write_jsonl(tmp_path, [tinker.call([1], ([2], [-0.5]))])
    other = {"kind": "forward_backward", "scope": {}, "status": "ok"}
    (tmp_path / "capture" / "forward_backward.jsonl").write_text(json.dumps(other) + "\n")
    assert column(rcdiag.open_table(tmp_path), "response_ids") == [[2]]
