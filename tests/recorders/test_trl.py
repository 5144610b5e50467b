"""A real run of TRL's GRPOTrainer on the sample policy, recorded and compared with the model."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rcdiag
from rcdiag import RcdiagError
from rcdiag.recorders.trl import recording
from tests.recorders.trl_run import reward
from tools.docs.commands import ROOT

POLICY = ROOT / "sample_data" / "policy" / "step_8"
# Packages that TRL imports; installed ones are not downloaded.
PACKAGES = {
    "trl": "trl==1.16.0",
    "datasets": "datasets>=5,<6",
    "pandas": "pandas",
    "xxhash": "xxhash",
    "multiprocess": "multiprocess",
    "dateutil": "python-dateutil",
    "six": "six",
}
TEMPERATURE = 0.7

Rows = list[dict[str, Any]]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with TRL and its dependencies that the environment lacks."""
    folder = tmp_path_factory.mktemp("trl")
    lacking = [
        expected for name, expected in PACKAGES.items() if not importlib.util.find_spec(name)
    ]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, *lacking], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def run(packages, tmp_path_factory) -> Callable[[str], rcdiag.Table]:
    """Return a function that gives the records of a TRL run, by the name of a case."""
    folder = tmp_path_factory.mktemp("runs")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)])}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}

    def recorded(case: str) -> rcdiag.Table:
        dump = folder / case.replace(" ", "_")
        if not dump.exists():
            command = [
                sys.executable,
                "-m",
                "tests.recorders.trl_run",
                str(POLICY),
                str(dump),
                case,
            ]
            ran = subprocess.run(
                command, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=600
            )
            assert ran.returncode == 0, ran.stderr
        return rcdiag.open_table(dump)

    return recorded


def rows_of(table: rcdiag.Table) -> Rows:
    return [row for batch in table.batches() for row in batch.table.to_pylist()]


@pytest.fixture(scope="session")
def model_says() -> Callable[[dict[str, Any]], tuple[np.ndarray, np.ndarray]]:
    """Return a function: log-probs and entropies of a response at the run's temperature."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype="float32").eval()

    def log_probs(row: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(row["prompt_ids"]) - 1 : -1].double()
        every = (logits / TEMPERATURE).log_softmax(-1)
        chosen = every.gather(1, torch.tensor(row["response_ids"])[:, None])[:, 0]
        return chosen.numpy(), -(every.exp() * every).sum(-1).numpy()

    return log_probs


def assert_of_the_first_policy(rows: Rows, model_says: Callable, names: tuple[str, ...]) -> None:
    for row in rows:
        expected, _ = model_says(row)
        for name in names:
            np.testing.assert_allclose(row[name], expected, atol=2e-4)


@pytest.mark.oracle
def test_both_log_probs_of_a_run_without_old_ones(run, model_says):
    """Before the first update both columns are those of the checkpoint; after it they agree."""
    table = run("one step")
    rows = rows_of(table)
    assert Counter(row["step"] for row in rows) == {0: 8, 1: 8, 2: 8}
    first = [row for row in rows if row["step"] == 0]
    assert_of_the_first_policy(first, model_says, ("rollout_log_probs", "old_log_probs"))
    later = [row for row in rows if row["step"] == 2]
    for row in later:
        np.testing.assert_allclose(row["rollout_log_probs"], row["old_log_probs"], atol=2e-4)
    # The policy has moved by then, so this does not compare the checkpoint with itself.
    moved = [np.abs(model_says(row)[0] - row["old_log_probs"]).max() for row in later]
    assert max(moved) > 0.01
    result = rcdiag.score(table)
    assert result.num_sequences == 24
    assert abs(result.mismatch["k3_kl"].value) < 1e-6
    assert result.diagnosis.verdict == "healthy"


@pytest.mark.oracle
def test_everything_else_of_a_run(run, model_says):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    table = run("one step")
    rows = rows_of(table)
    for row in rows:
        text = tokenizer.decode(row["response_ids"], skip_special_tokens=True)
        assert row["reward"] == reward([text])[0]
        assert row["response_mask"] == [1] * len(row["response_ids"])
        assert (row["temperature"], row["top_p"], row["top_k"]) == (TEMPERATURE, 1.0, 0)
        ended = row["response_ids"][-1] == tokenizer.eos_token_id
        assert row["finish_reason"] == ("stop" if ended else "length")
        assert tokenizer.pad_token_id not in row["response_ids"]
        if row["step"] == 0:
            np.testing.assert_allclose(row["old_entropy"], model_says(row)[1], atol=2e-4)
    groups: dict[str, Rows] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    assert len(groups) == 6
    for group in groups.values():
        assert len({tuple(row["prompt_ids"]) for row in group}) == 1
        rewards = np.array([row["reward"] for row in group])
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        np.testing.assert_allclose([row["advantage"] for row in group], expected, atol=1e-3)
    policies = table.metadata["policies"]
    assert policies["rollout"]["sampling_temperature"] == TEMPERATURE
    assert policies["old"]["dtype"] == "float32"


@pytest.mark.oracle
def test_old_log_probs_that_trl_computes_itself(run, model_says):
    rows = rows_of(run("two updates"))
    assert Counter(row["step"] for row in rows) == {0: 8, 2: 8}
    first = [row for row in rows if row["step"] == 0]
    assert_of_the_first_policy(first, model_says, ("rollout_log_probs", "old_log_probs"))


@pytest.mark.oracle
def test_truncated_responses_keep_their_tokens_and_have_no_mask(run, model_says):
    rows = rows_of(run("truncated"))
    assert {row["finish_reason"] for row in rows} == {"stop", "length"}
    for row in rows:
        assert row["response_mask"] == [int(row["finish_reason"] == "stop")] * len(
            row["response_ids"]
        )
        assert len(row["rollout_log_probs"]) == len(row["response_ids"]) > 0
    finished = [row for row in rows if row["step"] == 0 and row["finish_reason"] == "stop"]
    assert_of_the_first_policy(finished, model_says, ("rollout_log_probs", "ref_log_probs"))


def test_a_trainer_of_another_kind_is_refused(tmp_path):
    refused = pytest.raises(RcdiagError, match="object has no method _generate_and_score")
    with rcdiag.Recorder(tmp_path) as recorder, refused, recording(object(), recorder):
        pass
