"""An advised command can be pasted: it names the sources as the user gave them."""

from __future__ import annotations

import shlex

import numpy as np

import rcdiag
from tests.builders import write_table


def differing(path, seed):
    """A table whose forward passes differ beyond rounding, so that a model is advised."""
    random = np.random.default_rng(seed)
    rollout = random.uniform(-3.0, -0.1, (64, 40))
    old = np.minimum(rollout + random.normal(0.0, 0.05, rollout.shape), -1e-4)
    ids = random.integers(2, 900, rollout.shape).tolist()
    columns = {"rollout_log_probs": rollout.tolist(), "old_log_probs": old.tolist()}
    return write_table(path, response_ids=ids, prompt_ids=ids, **columns)


def test_it_names_the_folder_that_was_given(tmp_path):
    folder = tmp_path / "a dump"
    folder.mkdir()
    differing(folder / "step_1.parquet", 1)
    differing(folder / "step_2.parquet", 2)
    for source in (folder, rcdiag.open_table(folder)):
        result = rcdiag.score(source)
        assert result.diagnosis is not None
        words = shlex.split(result.diagnosis.next[0].command)
        assert words[:3] == ["rcdiag", "diagnose", str(folder)]
