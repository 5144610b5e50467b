"""The hooks that docs/recording.md shows, on the classes of the trainers themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import rcdiag
from tests.oracle.slime import code, needs_slime
from tests.recorders.hooks import functions_of
from tests.table.readers.test_written_by_trainers import source, tensordict_of
from tools.docs.commands import ROOT

PAGE = ROOT / "docs" / "recording.md"


def rows_of(dump: Any) -> dict[str, list]:
    (batch,) = rcdiag.open_table(dump).batches()
    return batch.table.to_pydict()


@pytest.mark.oracle
@pytest.mark.parametrize(("verl", "tensordict"), [("0.6.1", "0.8.3"), ("0.9.1", "0.15.3")])
def test_the_hook_of_verl_on_its_own_batch(verl, tensordict, tmp_path):
    path = os.pathsep.join([tensordict_of(tensordict), str(ROOT)])
    command = [sys.executable, "-m", "tests.recorders.verl_batch"]
    command += [str(source("verl", verl, "verl/protocol.py")), str(PAGE), str(tmp_path / "dump")]
    environment = {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert rows_of(tmp_path / "dump") == {
        "response_ids": [[1, 2, 3], [4]],
        "prompt_ids": [[5, 6], [7, 8, 9]],
        "response_mask": [[1, 0, 0], [1]],
        "reward": [1.0, 0.5],
        "group_id": ["p0", "p0"],
        "temperature": [0.7, 0.7],
        "step": [3, 3],
        "rollout_log_probs": [[-0.5, 0.0, 0.0], [-1.0]],
        "old_log_probs": [[-0.25, -3.0, -2.0], [-1.5]],
        "advantages": [[1.0, 1.0, 1.0], [-1.0]],
    }


ARGS = SimpleNamespace(rollout_temperature=0.5, reward_key=None)


def sampled(kind: Any) -> list[Any]:
    """Make two samples of one prompt, and one that was aborted before its first token."""
    status = kind.Status
    return [
        kind(
            group_index=4,
            index=8,
            tokens=[5, 6, 1, 2],
            response_length=2,
            loss_mask=[1, 0],
            rollout_log_probs=[-0.5, 0.0],
            reward=1.0,
            status=status.COMPLETED,
        ),
        kind(
            group_index=4,
            index=9,
            tokens=[5, 6, 3],
            response_length=1,
            rollout_log_probs=[-0.25],
            reward=0.0,
            status=status.TRUNCATED,
        ),
        kind(group_index=5, index=10, status=status.ABORTED),
    ]


@pytest.mark.oracle
@needs_slime
def test_the_log_function_of_slime_on_its_own_samples(tmp_path):
    with rcdiag.Recorder(tmp_path) as recorder:
        hooks = functions_of(PAGE, {"recorder": recorder})
        samples = sampled(code("slime.utils.types").Sample)
        assert hooks["log_rollout"](12, ARGS, samples, {}, 1.0) is False
    assert rows_of(tmp_path) == {
        "response_ids": [[1, 2], [3]],
        "prompt_ids": [[5, 6], [5, 6]],
        "response_mask": [[1, 0], [1]],
        "rollout_log_probs": [[-0.5, 0.0], [-0.25]],
        "reward": [1.0, 0.0],
        "group_id": [4, 4],
        "sample_id": ["12-8", "12-9"],
        "finish_reason": ["stop", "length"],
        "temperature": [0.5, 0.5],
        "step": [12, 12],
    }


def test_the_train_function_of_slime_on_data_of_a_rank(tmp_path):
    """The dict that a training rank holds after the trainer's forward: lists of tensors."""
    torch = pytest.importorskip("torch")
    data = {
        "tokens": [torch.tensor([5, 6, 1, 2]), torch.tensor([7, 3])],
        "response_lengths": [2, 1],
        "total_lengths": [4, 2],
        "loss_masks": [torch.tensor([1, 0]), torch.tensor([1])],
        "rollout_log_probs": [torch.tensor([-0.5, 0.0]), torch.tensor([-0.25])],
        "log_probs": [torch.tensor([-0.75, -4.0]), torch.tensor([-0.5])],
        "advantages": [torch.tensor([1.0, 1.0]), torch.tensor([-1.0])],
    }
    with rcdiag.Recorder(tmp_path) as recorder:
        hooks = functions_of(PAGE, {"recorder": recorder})
        hooks["log_train"](ARGS, 12, {"tokens": data["tokens"]})  # a rank without log-probs
        hooks["log_train"](ARGS, 12, data)
    assert rows_of(tmp_path) == {
        "response_ids": [[1, 2], [3]],
        "prompt_ids": [[5, 6], [7]],
        "response_mask": [[1, 0], [1]],
        "rollout_log_probs": [[-0.5, 0.0], [-0.25]],
        "old_log_probs": [[-0.75, -4.0], [-0.5]],
        "advantages": [[1.0, 1.0], [-1.0]],
        "temperature": [0.5, 0.5],
        "step": [12, 12],
    }
