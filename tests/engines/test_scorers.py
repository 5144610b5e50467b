"""The programs in examples/ (FSDP2, Megatron-core; two processes) score as transformers does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rcdiag.engines.command import words_of
from rcdiag.engines.command.engine import CommandEngine
from rcdiag.engines.spec import PolicySpec
from rcdiag.table.stream import decode
from rcdiag.table.trajectories import Trajectories
from tests.builders import first_batch
from tests.engine_models import make_model, make_table

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
TORCHRUN = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Trajectories:
    """An odd number of rows of various lengths and temperatures, one without a response."""
    return decode(first_batch(make_table(tmp_path_factory.mktemp("t") / "t.parquet", rows=13)))


def scored_by(run: str, rows: Trajectories, folder: Path, parts: int = 1) -> np.ndarray:
    """Return the answer of a program that stays to the last of several parts."""
    options = {"run": run, "stays": True}
    spec = PolicySpec(name="x", backend="command", dtype="unstated", model="", options=options)
    (folder / "engine.log").touch()
    engine = CommandEngine(spec, words_of(spec), folder / "engine.log")
    for _ in range(parts):
        scores = engine.score(rows, lambda tokens: None)
    engine._staying.communicate(timeout=60)
    return scores.log_probs


def scored_by_transformers(dtype: str, model: Path, rows: Trajectories) -> np.ndarray:
    from rcdiag.engines.hf.engine import HfEngine

    # Row by row and by the CPU's own products, as the programs.
    options = {"batch_tokens": 1, "matmul": "native"}
    spec = PolicySpec(name="x", backend="hf", dtype=dtype, model=str(model), options=options)
    return HfEngine(spec).score(rows, lambda tokens: None).log_probs


def test_fsdp2_scores_as_hf_in_bfloat16(qwen3, rows, tmp_path):
    run = f"{TORCHRUN} {ROOT}/examples/score_fsdp2.py {qwen3}"
    found = scored_by(run, rows, tmp_path, parts=2)
    low, full = (scored_by_transformers(dtype, qwen3, rows) for dtype in ("bfloat16", "float32"))
    rounding = np.abs(low - full).mean()
    assert np.abs(found - low).mean() < 0.2 * rounding
    assert np.abs(found - full).mean() > 0.5 * rounding


def test_megatron_core_scores_as_hf_in_float32(rows, tmp_path):
    """Weights and vocabulary are split over the two processes."""
    pytest.importorskip("megatron.core")
    llama = make_model(tmp_path / "llama", "llama")
    on_cpu, folder = ROOT / "tests/engines/megatron_on_cpu.py", tmp_path / "megatron"
    writer = ROOT / "tests/engines/megatron_checkpoint.py"
    subprocess.run([sys.executable, on_cpu, writer, llama, folder], check=True)
    run = f"{TORCHRUN} {on_cpu} {ROOT}/examples/score_megatron.py {folder}"
    found = scored_by(run, rows, tmp_path)
    np.testing.assert_allclose(found, scored_by_transformers("float32", llama, rows), atol=2e-5)
