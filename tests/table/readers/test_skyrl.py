"""SkyRL's training batches: padded on the left, with filler rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rcdiag.errors import RcdiagError
from tests.table.readers.pickled import Built, Named, pickled, torch_bytes, write
from tests.table.readers.rollouts import Rollouts, assert_rows, only, read, rollouts

NAMES = {
    "rollout_log_probs": "rollout_logprobs",
    "old_log_probs": "action_log_probs",
    "ref_log_probs": "base_action_log_probs",
    "advantages": "advantages",
}
TOKENS = ("prompt_ids", "response_ids", "response_mask", *NAMES)
NEWER = "skyrl.backends.skyrl_train.training_batch"


def tensors_of(batch: Rollouts, fills: int = 0) -> dict[str, Any]:
    """Return the tensors of a batch with `fills` copies of its first row at the end."""
    rows = [*batch.rows, *batch.rows[:1] * fills]
    for row in rows:
        row["ids"] = row["prompt_ids"] + row["response_ids"]
        row["ones"], row["response"] = [1] * len(row["ids"]), [1] * len(row["response_ids"])
    width = max(len(row["ids"]) for row in rows) + 2
    whole, response = Rollouts(rows, 0, width), Rollouts(rows, 0, 12)
    tensors: dict[str, Any] = {
        "sequences": whole.matrix("ids", torch.int64, right=True),
        "attention_mask": whole.matrix("ones", torch.int64, right=True),
        "response_mask": response.matrix("response", torch.int64, right=True),
        "loss_mask": response.matrix("response_mask", torch.float32, right=True),
        "values": None,
    }
    if fills:
        tensors["loss_mask"][-fills:] = 0
    for ours, theirs in NAMES.items():
        tensors[theirs] = response.matrix(ours, torch.float32, right=True)
    return tensors


def stored(tensor: torch.Tensor | None, older: bool = False) -> Any:
    if tensor is None:
        return None
    if tensor.dtype == torch.bfloat16:
        return {"format": "torch", "data": torch_bytes(tensor)}
    array = tensor.numpy()
    entry = {"data": array.tobytes(), "shape": array.shape, "dtype": str(array.dtype)}
    return entry if older else {"format": "numpy", **entry}


def write_batch(
    path: Path, tensors: dict[str, Any], metadata: Any, module: str = NEWER, older: bool = False
) -> Path:
    state = {
        "batch_dict": {name: stored(tensor, older) for name, tensor in tensors.items()},
        "batch_size": len(tensors["sequences"]),
        "device": Built(Named("torch", "device"), ("cpu",)),
        "metadata": metadata,
    }
    kind = Named(module, "TrainingInputBatch")
    value = (
        Built(kind, (), state)
        if older
        else Built(Named(module, "_rebuild_tensor_batch"), (kind, state))
    )
    return write(path, pickled(value))


def name(step: int) -> str:
    return f"global_step_{step}_training_input.pkl"


def test_every_cell_is_read_and_filler_rows_are_left_out(tmp_path):
    batches = {step: rollouts(6, seed=step) for step in (9, 10)}
    for step, batch in batches.items():
        metadata = {"pad_size": 2, "policy_prompt_boundaries": [(0, 2), (2, 4), (4, 6)]}
        write_batch(tmp_path / "dumped_data" / name(step), tensors_of(batch, 2), metadata)
    rows, table = read(tmp_path)
    assert_rows(rows, [row for b in batches.values() for row in only(b.rows, *TOKENS)])
    assert [row["step"] for row in rows] == [9] * 6 + [10] * 6
    assert [row["group_id"] for row in rows] == [f"{i // 6}-{i % 6 // 2}" for i in range(12)]
    changes = table.metadata["conversion"]["changes"]
    assert changes["rows that SkyRL adds to fill a batch (pad_size) are left out"] == 4
    assert not {"reward", "temperature"} & set(table.columns)


def test_older_files_and_bfloat16_are_read(tmp_path):
    batch = rollouts(4)
    for row in batch.rows:
        row["old_log_probs"] = torch.tensor(row["old_log_probs"]).bfloat16().float().tolist()
    tensors = tensors_of(batch)
    older = write_batch(tmp_path / "a.pkl", tensors, None, "skyrl_train.training_batch", True)
    tensors["action_log_probs"] = tensors["action_log_probs"].bfloat16()
    newer = write_batch(tmp_path / "b.pkl", tensors, {})
    for path in (older, newer):
        rows, table = read(path)
        assert_rows(rows, only(batch.rows, *TOKENS))
        assert "step" not in table.columns
        assert [row["group_id"] for row in rows] == [0, 0, 1, 1]


def test_a_forward_that_was_skipped_leaves_its_column_out(tmp_path):
    batch = rollouts(4)
    tensors = {**tensors_of(batch), "action_log_probs": None, "base_action_log_probs": None}
    rows, table = read(write_batch(tmp_path / name(1), tensors, {"pad_size": 0}))
    assert table.policies == ["rollout"]
    assert_rows(rows, only(batch.rows, "response_ids", "rollout_log_probs"))


def test_the_floor_of_log_probs_becomes_nan(tmp_path):
    batch = rollouts(4)
    tensors = tensors_of(batch)
    size = len(batch.rows[1]["response_ids"])
    tensors["rollout_logprobs"][1, 12 - size] = -9999.0
    rows, table = read(write_batch(tmp_path / name(1), tensors, {}))
    assert rows[1]["rollout_log_probs"][0] != rows[1]["rollout_log_probs"][0]
    assert any("-9999" in change for change in table.metadata["conversion"]["changes"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["attention_mask"][1].__setitem__(-1, 0), "row 1: attention_mask is not one"),
        (lambda t: t["response_mask"][2].__setitem__(-1, 0), "row 2: response_mask is not one"),
        (lambda t: t["attention_mask"].zero_(), "row 1: response_mask has 12 tokens"),
        (lambda t: t.update(advantages=t["advantages"][:, 1:]), "advantages has the shape"),
        (lambda t: t.update(advantages=t["advantages"][1:]), "advantages has 3 rows"),
        (lambda t: t["loss_mask"][1].__setitem__(-1, 0.5), "column `loss_mask`: it holds 0.5"),
        (lambda t: t["loss_mask"][2].__setitem__(0, 1), "row 2: loss_mask is not 0 at padding"),
        (lambda t: t.pop("sequences"), "not laid out as SkyRL writes it"),
    ],
)
def test_a_batch_of_another_layout_is_refused(change, message, tmp_path):
    tensors = tensors_of(rollouts(4))
    size = {"sequences": tensors["sequences"]}
    change(tensors)
    path = tmp_path / name(1)
    if "sequences" not in tensors:
        state: dict[str, Any] = {"batch_dict": {}, "metadata": {}}
        kind = Named(NEWER, "TrainingInputBatch")
        write(path, pickled(Built(Named(NEWER, "_rebuild_tensor_batch"), (kind, state))))
    else:
        write_batch(path, {**size, **tensors}, {})
    with pytest.raises(RcdiagError, match=message):
        read(path)


def test_rows_outside_all_boundaries_are_refused(tmp_path):
    metadata = {"pad_size": 1, "policy_prompt_boundaries": [(0, 2)]}
    path = write_batch(tmp_path / name(1), tensors_of(rollouts(5), 1), metadata)
    with pytest.raises(RcdiagError, match=r"row 2: no `group_id`.* \(3 of 5 rows have none\)"):
        read(path)


@pytest.mark.parametrize(
    "metadata",
    [
        {"pad_size": 9},
        {"policy_prompt_boundaries": [(0, 10**12)]},
        {"policy_prompt_boundaries": [(0, 3), (2, 4)]},
    ],
)
def test_inconsistent_metadata_are_refused(metadata, tmp_path):
    path = write_batch(tmp_path / name(1), tensors_of(rollouts(4)), metadata)
    with pytest.raises(RcdiagError, match="not laid out as SkyRL"):
        read(path)


def test_filler_rows_that_are_trained_on_are_refused(tmp_path):
    path = write_batch(tmp_path / name(1), tensors_of(rollouts(4), 1), {"pad_size": 2})
    with pytest.raises(
        RcdiagError, match="row 3: padding according to the `pad_size` of its batch, but"
    ):
        read(path)


@pytest.mark.parametrize("offset", [0, 1])
def test_packed_experts_and_kept_ids_of_0_4_are_cut_to_the_response(offset, tmp_path):
    """Its formats are enum members; rows of packed tensors are concatenated."""
    batch = rollouts(6)
    tensors = tensors_of(batch)
    lengths = [len(row["ids"]) for row in batch.rows]
    experts = np.arange(4, 4 + 4 * sum(lengths), dtype=np.uint16).reshape(-1, 2, 2)
    ends = torch.tensor([0, *np.cumsum(lengths) - offset], dtype=torch.int32)
    unknown = torch.zeros_like(tensors["attention_mask"], dtype=torch.bool)
    unknown[:, -1] = True

    def of_0_4(entry: Any) -> Any:
        kind = Built(Named(NEWER, "TensorFormat"), (entry["format"],))
        return {**entry, "format": kind}

    held = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    stored_by_name = {name: of_0_4(stored(tensor)) for name, tensor in held.items()}
    stored_by_name["router_padding_mask"] = of_0_4(stored(unknown))
    kept = np.full((sum(len(row["response_ids"]) for row in batch.rows), 3), -1, np.int32)
    kept[:, 0] = np.arange(len(kept))
    kept[::2, 1] = 7
    responses = np.cumsum([0, *(len(row["response_ids"]) for row in batch.rows)])
    stored_by_name["rollout_sample_support"] = of_0_4(
        {
            "format": "packed_tensor",
            "values": of_0_4({"format": "numpy_view", "data": kept}),
            "cu_seqlens": of_0_4(stored(torch.tensor(responses, dtype=torch.int32))),
        }
    )
    stored_by_name["rollout_expert_indices"] = of_0_4(
        {
            "format": "packed_tensor",
            "values": of_0_4({"format": "numpy_view", "data": experts}),
            "cu_seqlens": of_0_4(stored(ends)),
        }
    )
    state = {"batch_dict": stored_by_name, "batch_size": 6, "device": None, "metadata": {}}
    kind = Named(NEWER, "TrainingInputBatch")
    value = Built(Named(NEWER, "_rebuild_tensor_batch"), (kind, state))
    path = write(tmp_path / name(4), pickled(value))
    if offset:
        with pytest.raises(RcdiagError, match=r"row 0: column `experts`: \d+ values for"):
            read(path)
        return
    rows, _ = read(path)
    assert_rows(rows, only(batch.rows, *TOKENS))
    for row, start, size in zip(rows, np.cumsum(lengths) - lengths, lengths, strict=True):
        own = experts[start + len(row["prompt_ids"]) : start + size].reshape(-1, 4).tolist()
        assert row["rollout_routed_experts"] == ([*own[:-1], []] if own else [])
    by_token = [[place, 7] if place % 2 == 0 else [place] for place in range(len(kept))]
    assert [ids for row in rows for ids in row["rollout_kept_ids"]] == by_token
    assert [len(row["rollout_kept_ids"]) for row in rows] == np.diff(responses).tolist()
