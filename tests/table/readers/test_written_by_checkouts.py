"""Files written by the trainers' own code in checkouts, compared cell by cell.

slime, miles, NeMo-RL, prime-rl, open-instruct and ROLL are not on a package index: environment
variables name their checkouts, as for the numbers of their losses.
"""

from __future__ import annotations

import enum
import json
import math
import os
import subprocess
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar
from unittest.mock import MagicMock

import msgspec
import numpy as np
import pytest
import torch

from tests.oracle.checkouts import MILES, OPEN_INSTRUCT, PRIME_RL, ROLL, SLIME
from tests.oracle.nemo_rl import NEMO_RL
from tests.table.readers.rollouts import Rollouts, assert_rows, only, read, rollouts
from tests.table.readers.test_written_by_trainers import tensordict_of

pytestmark = pytest.mark.oracle

QUIET = {"logger": MagicMock(), "Path": Path, "torch": torch, "Any": Any, "json": json, "np": np}
TYPES = {"dataclass": dataclass, "field": field, "Enum": enum.Enum, "numpy": np, **QUIET}
TYPES_OF_MILES = "miles/utils/types.py"
SAMPLE = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "reward")


def with_zeros(row: dict[str, Any], name: str) -> list[float]:
    """Return the values with 0 at tool tokens, as trainers store them."""
    return [x if m else 0.0 for x, m in zip(row[name], row["response_mask"], strict=True)]


def batch_of(count: int = 6) -> Rollouts:
    """Return rows with at least one token, with zeros at tool tokens."""
    batch = rollouts(count + 2).but_for(0, 1)
    for row in batch.rows:
        row["rollout_log_probs"] = with_zeros(row, "rollout_log_probs")
    return batch


def samples_of(kind: Any, batch: Rollouts) -> list[Any]:
    """Return the rows as `Sample`s of slime and miles."""
    return [
        kind(
            group_index=number // 2,
            index=number,
            tokens=row["prompt_ids"] + row["response_ids"],
            response_length=len(row["response_ids"]),
            reward=row["reward"],
            loss_mask=row["response_mask"],
            weight_versions=["3"],
            rollout_log_probs=row["rollout_log_probs"],
            status=kind.Status.COMPLETED,
        )
        for number, row in enumerate(batch.rows)
    ]


def trained_columns(batch: Rollouts, order: Sequence[int]) -> dict[str, Any]:
    """Return the columns of slime and miles for rows in the order of a rank."""
    rows = [batch.rows[number] for number in order]

    def floats(name: str) -> list[torch.Tensor]:
        return [torch.tensor(row[name]) for row in rows]

    return {
        "tokens": [torch.tensor(row["prompt_ids"] + row["response_ids"]) for row in rows],
        "total_lengths": [len(row["prompt_ids"] + row["response_ids"]) for row in rows],
        "response_lengths": [len(row["response_ids"]) for row in rows],
        "loss_masks": [torch.tensor(row["response_mask"], dtype=torch.int) for row in rows],
        "rollout_log_probs": floats("rollout_log_probs"),
        "log_probs": floats("old_log_probs"),
        "ref_log_probs": floats("ref_log_probs"),
        "advantages": floats("advantages"),
        "rewards": [0.0] * len(rows),
        "sample_indices": list(order),
        "partition": list(order),
        "raw_reward": batch.column("reward"),
    }


@SLIME.needed
def test_slime(tmp_path):
    batch = batch_of()
    sample = SLIME.definitions(
        "slime/utils/types.py", ["Sample"], {**TYPES, "decode_int32_meta_array": None}
    )["Sample"]
    folder = "slime/observability"
    save = SLIME.definitions(
        f"{folder}/rollout_data_utils.py", ["save_debug_rollout_data"], {**QUIET, "Sample": sample}
    )["save_debug_rollout_data"]
    template = str(tmp_path / "rollout_data" / "{rollout_id}.pt")
    for step in (9, 10):
        save(template, samples_of(sample, batch), rollout_id=step, evaluation=False)
    save(template, {"a": {"samples": samples_of(sample, batch)}}, rollout_id=9, evaluation=True)
    rows, _ = read(tmp_path)
    assert_rows(rows[:6], only(batch.rows, *SAMPLE))
    assert [row["step"] for row in rows] == [9] * 6 + [10] * 6
    assert [row["group_id"] for row in rows[:6]] == [rows[0]["group_id"]] * 2 + [
        rows[2]["group_id"]
    ] * 2 + [rows[4]["group_id"]] * 2

    names = ["_build_dump_payload", "_is_per_sample", "_LAYOUT_FIELDS", "_WHOLE_BATCH_FIELDS"]
    build = SLIME.definitions(f"{folder}/train_data_utils.py", names, QUIET)["_build_dump_payload"]
    shards = [
        {"rank": rank, "data_parallel_rank": rank, "rollout_data": trained_columns(batch, order)}
        for rank, order in enumerate(([4, 0, 2], [5, 3, 1]))
    ]
    trained = ("old_log_probs", "ref_log_probs", "advantages")
    for step in (9, 10):
        path = tmp_path / "train_data" / f"{step}.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save(build(shards, rollout_id=step, writer_rank=0), path)
    for source in (tmp_path, tmp_path / "train_data"):
        rows, _ = read(source)
        assert_rows(rows[6:], only(batch.rows, *SAMPLE, *trained))


@MILES.needed
def test_miles(tmp_path, monkeypatch):
    batch = batch_of()
    types = MILES.definitions(TYPES_OF_MILES, ["Sample", "AdapterRef", "RewardSpec"], TYPES)
    sample = types["Sample"]
    debug = "miles/ray/rollout/debug_data.py"
    names = ["save_debug_rollout_data", "save_dashboard_columns", "save_debug_trajectory_data"]
    save = MILES.definitions(
        debug, [*names, "trajectory_rows", "_warned_no_polars"], {**QUIET, "Sample": sample}
    )
    args = SimpleNamespace(
        save_debug_rollout_data=str(tmp_path / "rollout_data" / "{rollout_id}.pt"),
        save_debug_trajectory_data=str(tmp_path / "trajectory" / "{rollout_id}.jsonl"),
        save_debug_train_data=str(tmp_path / "train_data" / "{rollout_id}_{rank}.pt"),
        qkv_format="thd",
    )
    samples = samples_of(sample, batch)
    # Classes of miles are pickled under their module names in miles.
    for name in ("miles", "miles.utils", "miles.utils.types"):
        module = ModuleType(name)
        vars(module).update(types if name == "miles.utils.types" else {})
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("AdapterRef", "RewardSpec"):
        monkeypatch.setattr(types[name], "__module__", "miles.utils.types")
    samples[1].adapter = types["AdapterRef"]("math", 2)
    samples[1].reward_spec = types["RewardSpec"]("deepscaler")
    samples[0].loss_mask = None
    batch.rows[0]["response_mask"] = [1] * len(batch.rows[0]["response_ids"])
    save["save_debug_rollout_data"](args, samples, 7, False)
    rows, _ = read(tmp_path / "rollout_data")
    assert_rows(rows, only(batch.rows, *SAMPLE))
    rows, _ = read(tmp_path / "dashboard_columns")
    assert_rows(rows, only(batch.rows, *SAMPLE[:4]))

    dump = MILES.definitions(
        "miles/utils/train_dump_utils.py", ["save_debug_train_data_for_rank"], QUIET
    )["save_debug_train_data_for_rank"]
    ranks = ([4, 0, 2], [5, 3, 1])
    for rank, order in enumerate(ranks):
        columns = trained_columns(batch, order)
        dump(args, rollout_id=7, rollout_data=columns, rank=rank, cp_rank=0, cp_size=1)
    rows, _ = read(tmp_path)
    truth = [batch.rows[number] for order in ranks for number in order]
    assert_rows(rows, only(truth, *SAMPLE, "old_log_probs", "ref_log_probs", "advantages"))


@NEMO_RL.needed
@pytest.mark.parametrize("scalar", [False, True])
def test_nemo_rl(tmp_path, scalar):
    batch = batch_of()
    rows, lengths = batch.rows, [len(r["prompt_ids"] + r["response_ids"]) for r in batch.rows]
    width = max(lengths)
    advantages = [[0.25 * number] for number in range(len(rows))]

    def whole(before: Any, name: str, after: Any) -> list[list[Any]]:
        values = [[before] * len(row["prompt_ids"]) + row[name] for row in rows]
        return [row + [after] * (width - len(row)) for row in values]

    for row in rows:  # a response begins with its first assistant token
        row["response_mask"][0] = 1
        row["rollout_log_probs"][0] = -0.25
    tokens = [row["prompt_ids"] + row["response_ids"] for row in rows]
    to_log = {
        "content": [["..."]] * len(rows),
        "rewards": batch.column("reward"),
        "input_lengths": lengths,
        "token_ids": [row + [0] * (width - len(row)) for row in tokens],
        "token_loss_mask": whole(0, "response_mask", 0),
        "sample_loss_mask": [1.0] * len(rows),
        "advantages": [a if scalar else a * width for a in advantages],
        "generation_logprobs": torch.tensor(whole(0.0, "rollout_log_probs", 0.0)),
        "prev_logprobs": torch.tensor(whole(-3.0, "old_log_probs", 0.0)),
    }
    kind, data = TypeVar("kind"), "nemo_rl/distributed/batched_data_dict.py"
    space = {"UserDict": UserDict, "Generic": Generic, "DictT": kind, "torch": torch}
    space |= {"PackedTensor": type("PackedTensor", (), {})}
    batched = NEMO_RL.definitions(data, ["BatchedDataDict", "SlicedDataDict"], space)
    space = {**QUIET, "os": os, "BatchedDataDict": batched["BatchedDataDict"]}
    space |= {"LoggerInterface": object}
    logger = NEMO_RL.definitions("nemo_rl/utils/logger.py", ["Logger"], space)["Logger"]
    log = logger.log_batched_dict_as_jsonl
    for step in (2, 10):
        log(SimpleNamespace(base_log_dir=str(tmp_path)), to_log, f"train_data_step{step}.jsonl")
    result, _ = read(tmp_path)
    truth = only(rows, *SAMPLE, "old_log_probs")
    assert_rows(result[:6], truth)
    assert [row["step"] for row in result] == [2] * 6 + [10] * 6
    for row, (advantage,) in zip(result, advantages, strict=False):
        assert {*([row["advantage"]] if scalar else row["advantages"])} == {advantage}


@PRIME_RL.needed
def test_token_exports_of_prime_rl(tmp_path):
    batch = batch_of()
    file = "src/prime_rl/trainer/rl/token_export.py"
    ratio = PRIME_RL.definitions(
        "src/prime_rl/trainer/rl/loss.py",
        ["compute_importance_ratio_and_mismatch_kl"],
        {"torch": torch, "Tensor": torch.Tensor},
    )
    helpers = (
        "_export_columns _compute_export_tensors _tensor_to_ints _tensor_to_bools "
        "_tensor_to_floats _optional_tensor_to_floats _optional_tensor_to_bools _check_lengths "
        "_slice_columns _trim_padding _json_float _first_non_empty"
    )
    names = ["TokenExporter", "SCHEMA_VERSION", *helpers.split()]
    space = {**QUIET, "math": math, "Mapping": Mapping, "Sequence": Sequence, "atexit": MagicMock()}
    space |= {"compute_importance_ratio_and_mismatch_kl": ratio[
        "compute_importance_ratio_and_mismatch_kl"
    ], "DefaultLossConfig": SimpleNamespace, "Tensor": torch.Tensor}  # fmt: skip
    exporter = PRIME_RL.definitions(file, names, space)["TokenExporter"](tmp_path, 0)
    lengths = [len(row["prompt_ids"] + row["response_ids"]) for row in batch.rows]

    for row in batch.rows:  # the response begins with the first token that was sampled
        row["response_mask"][0] = 1
        row["rollout_log_probs"][0] = -0.25

    def packed(name: str, before: float) -> torch.Tensor:
        values = [[before] * len(row["prompt_ids"]) + row[name] for row in batch.rows]
        return torch.tensor([x for row in values for x in row] + [before] * 4)[None]

    ids = [t for row in batch.rows for t in row["prompt_ids"] + row["response_ids"]] + [0] * 4
    micro_batch = {
        "input_ids": torch.tensor(ids)[None],
        "position_ids": torch.zeros(1, len(ids), dtype=torch.int64),
        "loss_mask": packed("response_mask", 0).bool(),
        "advantages": packed("advantages", 0.0),
        "inference_logprobs": packed("rollout_log_probs", 0.0),
        "env_names": ["math"] * sum(lengths) + [""] * 4,
    }
    output = {"logprobs": packed("old_log_probs", -11.0), "entropy": packed("old_entropy", 0.5)}
    config = SimpleNamespace(dppo_mask_high=0.2, dppo_mask_low=0.2)
    for step in (9, 10):
        sizes = [*lengths[:-1], lengths[-1] + 4]  # padding belongs to the last sequence
        exporter.export(step, 0, micro_batch, output, sizes, config)
    exporter.mark_stable()
    rows, _ = read(tmp_path)
    names = [name for name in SAMPLE if name != "reward"]
    assert_rows(rows[:6], only(batch.rows, *names, "old_log_probs", "advantages"))
    assert [row["step"] for row in rows] == [9] * 6 + [10] * 6


@PRIME_RL.needed
def test_micro_batches_of_prime_rl(tmp_path):
    file = "src/prime_rl/transports/rollouts/types.py"
    names = ["EncodedTensor", "RoutedExperts", "MicroBatch"]
    types = PRIME_RL.definitions(file, names, {"msgspec": msgspec})
    batch = batch_of()
    for row in batch.rows:
        row["response_mask"][0] = 1
        row["rollout_log_probs"][0] = -0.25

    def packed(name: str, before: Any) -> list[Any]:
        return [x for r in batch.rows for x in [before] * len(r["prompt_ids"]) + r[name]]

    ids = [token for row in batch.rows for token in row["prompt_ids"] + row["response_ids"]]
    lengths = [len(row["prompt_ids"] + row["response_ids"]) for row in batch.rows]
    experts = np.arange(len(ids) * 4, dtype=np.uint8).reshape(-1, 2, 2)
    made = types["MicroBatch"](
        input_ids=ids,
        loss_mask=[value == 1 for value in packed("response_mask", 0)],
        advantages=packed("advantages", 0.0),
        inference_logprobs=packed("rollout_log_probs", 0.0),
        position_ids=[place for length in lengths for place in range(length)],
        sequence_lengths=lengths,
        temperatures=[0.7] * len(ids),
        env_names=["math"] * len(ids),
        seq_lens=lengths,
        routed_experts=types["RoutedExperts"](experts.tobytes(), list(experts.shape), "uint8"),
    )
    path = tmp_path / "rollouts" / "step_12" / "rank_0.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.msgpack.encode([made]))
    rows, _ = read(tmp_path)
    kept = [name for name in SAMPLE if name != "reward"]
    assert_rows(rows, only(batch.rows, *kept, "advantages"))
    assert {(row["step"], row["temperature"], row["env_name"]) for row in rows} == {
        (12, 0.7, "math")
    }
    end = lengths[0]
    start = len(batch.rows[0]["prompt_ids"])
    assert rows[0]["rollout_routed_experts"] == experts[start:end].reshape(-1, 4).tolist()


@OPEN_INSTRUCT.needed
def test_open_instruct(tmp_path):
    batch = batch_of()
    names = ["RolloutRecord", "_get_request_info_for_sample", "_save_rollouts"]
    space = {**TYPES, "asdict": asdict, "os": os, "model_utils": None, "data_types": None}
    save = OPEN_INSTRUCT.definitions("open_instruct/rl_utils.py", names, space)["_save_rollouts"]
    count = len(batch)
    called = [0 in row["response_mask"] for row in batch.rows]
    info = SimpleNamespace(
        num_calls=[1] * count, timeouts=[0] * count, tool_errors=[""] * count,
        tool_outputs=["4"] * count, tool_runtimes=[0.5] * count, tool_calleds=called,
        tool_call_stats=[[]] * count, rollout_states=[{}] * count,
    )  # fmt: skip
    result = SimpleNamespace(
        responses=batch.column("response_ids"), finish_reasons=["stop"] * count,
        request_info=info, logprobs=batch.column("rollout_log_probs"),
    )  # fmt: skip
    given = SimpleNamespace(
        queries=batch.column("prompt_ids"), scores=batch.column("reward"),
        datasets=["math"] * count, ground_truths=[[1]] * count,
    )  # fmt: skip
    advantages = np.arange(count) / 4
    for step in (1, 2):
        save(str(tmp_path), "run", step, given, result, advantages, 2, step - 1)
    rows, _ = read(tmp_path)
    assert_rows(rows[:count], only(batch.rows, *SAMPLE))
    assert [row["advantage"] for row in rows[:count]] == advantages.tolist()
    assert len({row["group_id"] for row in rows}) == count
    assert [row["step"] for row in rows] == [1] * count + [2] * count


@ROLL.needed
@pytest.mark.parametrize("tensordict", ["0.8.3", "0.10.0", "0.15.3"])
def test_roll(tmp_path, tensordict):
    batch = batch_of()
    torch.save(roll_tensors(batch), tmp_path / "tensors.pt")
    path = os.pathsep.join([tensordict_of(tensordict), os.environ.get("PYTHONPATH", "")])
    script = Path(__file__).with_name("write_with_roll.py")
    file = tmp_path / "train" / "step_000003.pkl"
    file.parent.mkdir()
    ran = subprocess.run(
        [sys.executable, str(script), ROLL.folder, str(tmp_path / "tensors.pt"), str(file)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    rows, _ = read(file)
    truth = only(batch.rows, *SAMPLE)
    assert_rows(rows, truth)
    assert {row["temperature"] for row in rows} == {0.7}
    assert {row["step"] for row in rows} == {3}
    assert len({row["group_id"] for row in rows}) == 3


def roll_tensors(batch: Rollouts) -> dict[str, torch.Tensor]:
    """Return the tensors of `postprocess_generate` of ROLL for single prompts."""
    width = batch.prompt_width + batch.response_width

    def whole(values: Iterator[list[Any]], kind: torch.dtype, size: int = width) -> torch.Tensor:
        return torch.stack(
            [
                torch.nn.functional.pad(torch.tensor(row, dtype=kind), (0, size - len(row)))
                for row in values
            ]
        )

    rows = batch.rows
    ones = [[1] * len(row["prompt_ids"] + row["response_ids"]) for row in rows]
    shifted = ([0.0] * (len(row["prompt_ids"]) - 1) + row["rollout_log_probs"] for row in rows)
    return {
        "prompts": batch.matrix("prompt_ids", torch.int64, right=True),
        "responses": batch.matrix("response_ids", torch.int64),
        "input_ids": whole((row["prompt_ids"] + row["response_ids"] for row in rows), torch.int64),
        "attention_mask": whole(iter(ones), torch.int64),
        "prompt_mask": whole(([1] * len(row["prompt_ids"]) for row in rows), torch.int64),
        "response_mask": whole(
            ([0] * len(row["prompt_ids"]) + row["response_mask"] for row in rows), torch.int64
        ),
        "infer_logprobs": whole(shifted, torch.float32, width - 1),
        "prompt_id": torch.arange(len(rows)) // 2,
        "scores": torch.tensor(batch.column("reward"), dtype=torch.float32),
    }
