"""Recognise checkpoints that a trainer saved in shards, and refuse them with the merge command.

They are not read here: the layout of the shards is pickled (`.metadata` of torch's distributed
checkpoints, `common.pt` of Megatron's, verl's `.pt` files), and pickles can run code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from rcdiag.errors import RcdiagError

MERGED = ("*.safetensors", "pytorch_model*.bin", "*.gguf")


@dataclass(frozen=True)
class ShardLayout:
    """One format of sharded checkpoints."""

    says: str
    marks: tuple[str, ...]  # file patterns, all of which must match in the folder
    merge: str  # command with the placeholders {folder} of shards and {merged} for its output


# Tried in this order: the marks of a later format may also match in a folder of an earlier one.
LAYOUTS = (
    # verl/model_merger/base_model_merger.py
    ShardLayout(
        says="shards of verl's FSDP engine",
        marks=("model_world_size_*_rank_*.pt",),
        merge="python -m verl.model_merger merge --backend fsdp --local_dir {folder} "
        "--target_dir {merged}",
    ),
    ShardLayout(
        says="shards of verl's Megatron engine",
        marks=("dist_ckpt/common.pt",),
        merge="python -m verl.model_merger merge --backend megatron --local_dir {folder} "
        "--target_dir {merged}",
    ),
    # slime/tools/convert_torch_dist_to_hf.py
    ShardLayout(
        says="a distributed checkpoint of Megatron (torch_dist)",
        marks=("common.pt", "*.distcp"),
        merge="PYTHONPATH=/path/to/Megatron-LM python tools/convert_torch_dist_to_hf.py "
        "--input-dir {folder} --output-dir {merged} --origin-hf-dir ORIGINAL (in slime's "
        "repository; ORIGINAL is the Hugging Face folder that training began from)",
    ),
    # accelerate/commands/merge.py
    ShardLayout(
        says="a distributed checkpoint of torch (FSDP)",
        marks=(".metadata", "*.distcp"),
        merge="accelerate merge-weights {folder} {merged}, and copy config.json of the model that "
        "training began from into {merged}",
    ),
    # deepspeed/utils/zero_to_fp32.py, which DeepSpeed puts beside its checkpoints
    ShardLayout(
        says="shards of DeepSpeed's ZeRO",
        marks=("zero_to_fp32.py",),
        merge="python {folder}/zero_to_fp32.py {folder} {merged} --safe_serialization, and copy "
        "config.json of the model that training began from into {merged}",
    ),
)


def refuse_shards(model: str, folder: Path) -> None:
    """Refuse a folder without merged weights that holds shards, directly or one level below."""
    if any(True for pattern in MERGED for _ in folder.glob(pattern)):
        return
    inside = sorted(path for path in folder.iterdir() if path.is_dir())
    for where in (folder, *inside):
        for layout in LAYOUTS:
            if all(any(True for _ in where.glob(mark)) for mark in layout.marks):
                merged = where.with_name(f"{where.name}_hf")
                command = layout.merge.format(folder=quote(str(where)), merged=quote(str(merged)))
                raise RcdiagError(
                    f"model {model}: {layout.says}, not a Hugging Face folder",
                    hint=f"merge them, then give {merged}: {command}",
                )
