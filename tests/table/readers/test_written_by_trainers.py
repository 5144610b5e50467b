"""Files written by verl's and SkyRL's own classes, with several versions of tensordict."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from tests.table.readers import test_skyrl
from tests.table.readers.rollouts import assert_rows, only, read, rollouts
from tests.table.readers.test_verl import TOKENS
from tests.table.readers.verl_batches import tensors_of

pytestmark = pytest.mark.oracle

# verl and tensordict: the oldest and newest that verl allows, and the newest release.
VERSIONS = [("0.6.1", "0.8.3"), ("0.9.1", "0.10.0"), ("0.9.1", "0.15.3")]
SKYRL = {"0.6.1": "0.3.0", "0.9.1": "0.4.0"}  # beside each version of verl
QUEUE = "0.1.11"  # of TransferQueue
SKYRL_FILES = "skyrl/backends/skyrl_train"
STORAGE = "transfer_queue/storage/managers"
NEEDED = ("pyvers", "orjson", "cloudpickle", "packaging")
SCRIPT = Path(__file__).with_name("write_with_trainers.py")


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "-q", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@cache
def tensordict_of(version: str) -> str:
    folder = mkdtemp()
    pip("install", "--no-deps", "--target", folder, f"tensordict=={version}", *NEEDED)
    return folder


@cache
def source(package: str, version: str, member: str, *options: str) -> Path:
    folder = Path(mkdtemp())
    pip("download", "--no-deps", *options, "-d", str(folder), f"{package}=={version}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return Path(wheel.extract(member, folder))


def written(tmp_path: Path, truth: dict[str, Any], verl: str, tensordict: str) -> Path:
    torch.save(truth, tmp_path / "truth.pt")
    folder = tmp_path / "written"
    other_python = ("--python-version", "3.12", "--only-binary", ":all:")
    files = (
        source("verl", verl, "verl/protocol.py"),
        source("transferqueue", QUEUE, f"{STORAGE}/simple_storage_manager.py"),
        source("skyrl", SKYRL[verl], f"{SKYRL_FILES}/training_batch.py", *other_python),
    )
    if SKYRL[verl] != "0.3.0":
        packed = f"{SKYRL_FILES}/utils/packed_tensor.py"
        files = (*files, source("skyrl", SKYRL[verl], packed, *other_python))
    path = os.pathsep.join([tensordict_of(tensordict), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPT), str(tmp_path / "truth.pt"), str(folder)]
    ran = subprocess.run(
        [*command, *map(str, files)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.mark.parametrize(("verl", "tensordict"), VERSIONS)
def test_files_of_trainers_are_read_cell_by_cell(verl, tensordict, tmp_path):
    batch = rollouts(8)
    queued = batch.but_for(0)
    names = {
        "prompts": ("prompt_ids", torch.int64),
        "responses": ("response_ids", torch.int64),
        "response_mask": ("response_mask", torch.int64),
        "rollout_log_probs": ("rollout_log_probs", torch.float32),
    }
    tags = [{"min_global_steps": 4, "max_global_steps": 4} for _ in queued.rows]
    tags[-1]["is_padding"] = True
    truth: dict[str, Any] = {
        "tensors": tensors_of(batch),
        "uid": batch.column("group_id"),
        "queue": {
            name: [torch.tensor(row[column], dtype=kind) for row in queued.rows]
            for name, (column, kind) in names.items()
        },
        "keys": [f"{row['group_id']}_0_0" for row in queued.rows],
        "tags": tags,
        "skyrl": test_skyrl.tensors_of(batch),
        "boundaries": [(0, 2), (2, 4), (4, 6), (6, 8)],
    }
    lengths = [len(row["prompt_ids"] + row["response_ids"]) for row in batch.rows]
    truth["experts"] = [torch.randint(1, 200, (n, 2, 2), dtype=torch.uint8) for n in lengths]
    truth["skyrl"]["action_log_probs"] = truth["skyrl"]["action_log_probs"].bfloat16()
    folder = written(tmp_path, truth, verl, tensordict)
    for name in ("disk.dp", "torch.pt", "tensordict.pt", "dict.pt", "protocol5.dp", "numpy.dp"):
        rows, _ = read(folder / name)
        assert_rows(rows, only(batch.rows, *TOKENS, "reward"))
        if name in ("disk.dp", "torch.pt", "protocol5.dp", "numpy.dp"):
            assert_rows(rows, only(batch.rows, "group_id"))
            assert {row["temperature"] for row in rows} == {0.7}
    for form in ("plain", "consolidated"):
        rows, _ = read(folder / form / "tq_batch.pt")
        assert_rows(rows, only(queued.rows[:-1], *(column for column, _ in names.values())))
    rows, _ = read(folder / "global_step_4_training_input.pkl")
    if SKYRL[verl] != "0.3.0":
        for row, made in zip(rows, truth["experts"], strict=True):
            own = made.reshape(len(made), -1)[len(row["prompt_ids"]) :].tolist()
            assert row["rollout_routed_experts"] == ([*own[:-1], []] if own else [])
    assert_rows(rows, only(batch.rows, "prompt_ids", "response_ids", "response_mask", "advantages"))
    assert [row["step"] for row in rows] == [4] * 8
    assert [row["group_id"] for row in rows] == [f"0-{row // 2}" for row in range(8)]
    result = [row["old_log_probs"] for row in rows]
    rounded = [torch.tensor(row["old_log_probs"]).bfloat16().tolist() for row in batch.rows]
    assert result == rounded
