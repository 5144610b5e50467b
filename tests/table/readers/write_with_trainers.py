"""Write files with the trainers' own classes; run as a script, with their packages on the path.

    python write_with_trainers.py TRUTH.pt FOLDER PROTOCOL.py STORAGE_MANAGER.py TRAINING_BATCH.py \
        [PACKED_TENSOR.py]

TRUTH.pt holds tensors and values of a batch of each trainer. Modules that those files import but
that writing does not use (ray, jaxtyping, verl's utilities) are replaced by empty ones.
"""

from __future__ import annotations

import ast
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import tensordict  # type: ignore[import-not-found]
import torch


def module(name: str, path: str, needs: list[str]) -> Any:
    """Execute a source file as a module of this name."""
    for needed in needs:
        sys.modules[needed] = MagicMock()
    parts = name.split(".")
    for depth in range(1, len(parts)):
        sys.modules.setdefault(".".join(parts[:depth]), types.ModuleType(parts[depth - 1]))
    made = types.ModuleType(name)
    sys.modules[name] = made
    setattr(sys.modules[".".join(parts[:-1])], parts[-1], made)
    exec(compile(Path(path).read_text(), path, "exec"), made.__dict__)
    return made


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def write_verl(truth: dict[str, Any], folder: Path, source: str) -> None:
    needs = ["ray", *(f"verl.utils.{part}" for part in (
        "device", "py_functional", "torch_functional", "transferqueue_utils",
    ))]  # fmt: skip
    proto = module("verl.protocol", source, needs)
    uid = objects(truth["uid"])
    batch = proto.DataProto.from_dict(
        tensors=truth["tensors"], non_tensors={"uid": uid}, meta_info={"temperature": 0.7}
    )
    batch.save_to_disk(folder / "disk.dp")
    torch.save(batch, folder / "torch.pt")
    torch.save(batch.batch, folder / "tensordict.pt")
    torch.save(dict(batch.batch), folder / "dict.pt")
    (folder / "protocol5.dp").write_bytes(pickle.dumps(batch, 5))
    os.environ["VERL_DATAPROTO_SERIALIZATION_METHOD"] = "numpy"
    batch.save_to_disk(folder / "numpy.dp")
    del os.environ["VERL_DATAPROTO_SERIALIZATION_METHOD"]


def packing_of(source: str) -> Any:
    """Return TransferQueue's function that packs the rows of a column."""
    names = [each for each in ast.walk(ast.parse(Path(source).read_text()))
             if getattr(each, "name", "") == "_pack_field_values"]  # fmt: skip
    (function,) = names
    assert isinstance(function, ast.FunctionDef)
    function.decorator_list = []
    space = {"torch": torch, "logger": MagicMock(), "NonTensorStack": tensordict.NonTensorStack}
    exec(compile(ast.Module([function], []), source, "exec"), space)
    return space[function.name]


def write_queue(truth: dict[str, Any], folder: Path, source: str) -> None:
    """Write the file of `RolloutSkip.prepare_data` of verl's V1 trainer, packed by the queue."""
    pack, count = packing_of(source), len(truth["keys"])
    columns = {
        name: pack(list(map(torch.as_tensor, rows))) for name, rows in truth["queue"].items()
    }
    columns["num_turns"] = pack([torch.tensor(2)] * count)
    columns["data_source"] = pack(["made/up"] * count)
    columns["extra_fields"] = pack([{"a": 1}] * count)
    columns["multi_modal_inputs"] = pack([torch.ones(2), *[None] * (count - 1)])
    size = [count]
    batch = tensordict.TensorDict(columns, batch_size=size)
    payload = {"tags": truth["tags"], "keys": truth["keys"], "global_steps": 5}
    for name, value in (("plain", batch), ("consolidated", batch.consolidate())):
        (folder / name).mkdir()
        torch.save({"tensordict": value, **payload}, folder / name / "tq_batch.pt")


def write_skyrl(truth: dict[str, Any], folder: Path, source: str, packed: str | None) -> None:
    """Write a step, since SkyRL 0.4 with packed experts of its tokens."""
    utils = "skyrl.backends.skyrl_train.utils"
    sys.modules[utils] = types.ModuleType(utils)
    needs = ["jaxtyping", f"{utils}.replay_utils"]
    tensors = dict(truth["skyrl"])
    if packed is not None:
        needs += [f"{utils}.sample_support"]
        kind = module(f"{utils}.packed_tensor", packed, []).PackedTensor
        tensors["rollout_expert_indices"] = kind.from_segments(truth["experts"])
        unknown = torch.zeros_like(tensors["attention_mask"], dtype=torch.bool)
        unknown[:, -1] = True  # the router has chosen nothing for the last token
        tensors["router_padding_mask"] = unknown
    made = module("skyrl.backends.skyrl_train.training_batch", source, needs)
    if packed is not None:
        made.replay_padding_row.side_effect = lambda topk, dtype, device: torch.arange(topk)
    batch = made.TrainingInputBatch(tensors)
    batch.metadata = {"policy_prompt_boundaries": truth["boundaries"]}
    padded = made.pad_training_input_batch(batch, 3)
    padded.save(folder / "global_step_4_training_input.pkl")


def main() -> None:
    truth = torch.load(sys.argv[1], weights_only=False)
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True)
    write_verl(truth, folder, sys.argv[3])
    write_queue(truth, folder, sys.argv[4])
    write_skyrl(truth, folder, sys.argv[5], next(iter(sys.argv[6:]), None))


if __name__ == "__main__":
    main()
