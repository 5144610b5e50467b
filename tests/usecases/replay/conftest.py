"""A tiny random model and a table that it could have sampled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import write_table

ROWS = 8


def table_for(path: Path, model: Path, seed: int = 0, **columns: object) -> Path:
    """Make ragged rows with masked tokens and an empty row; sampler log-probs have noise."""
    from tests.engine_models import VOCABULARY, reference

    random = np.random.default_rng(seed)
    lengths = [int(n) for n in random.integers(2, 9, ROWS)]
    lengths[5] = 0
    masks = [[1, *(random.random(n - 1) < 0.8).astype(int)] if n else [] for n in lengths]
    given: dict[str, object] = {
        "prompt_ids": [[2 + row // 2, 5, 9 + row // 2] for row in range(ROWS)],
        "response_ids": [random.integers(2, VOCABULARY, n).tolist() for n in lengths],
        "response_mask": masks,
        "temperature": [0.9] * ROWS,
        "reward": [float(row % 2) + row / 10 for row in range(ROWS)],
        "advantage": [1.0, -1.0, 0.5, -2.0, 1.5, 0.0, 0.0, -0.5],
        "group_id": [row // 2 for row in range(ROWS)],
        "answer": [str(row // 2) for row in range(ROWS)],
    }
    given |= columns
    write_table(path, **given)
    logs = [row.tolist() for row in reference(model, path)["log_probs"]]
    noisy = [[min(v + random.normal(0.0, 0.2), -1e-3) for v in row] for row in logs]
    result = pq.read_table(path)
    result = result.append_column("rollout_log_probs", pa.array(noisy, pa.list_(pa.float64())))
    pq.write_table(result, path)
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.engine_models import make_model

    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return table_for(tmp_path_factory.mktemp("tables") / "table.parquet", model)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: layers this small are faster without a second one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
