"""Sharded checkpoints are refused with the command that merges them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rcdiag.engines.checkpoint import check_checkpoint
from rcdiag.errors import RcdiagError


def files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


VERL = ("fsdp_config.json", "huggingface/config.json", "model_world_size_2_rank_0.pt")
DCP = (".metadata", "__0_0.distcp", "__1_0.distcp")


@pytest.mark.parametrize(
    ("names", "words", "command"),
    [
        (VERL, "verl's FSDP", "merge --backend fsdp --local_dir {0} --target_dir {0}_hf"),
        (("config.json", *VERL), "verl's FSDP", "--backend fsdp"),  # location in older versions
        (
            ("huggingface/config.json", *(f"dist_ckpt/{name}" for name in ("common.pt", *DCP))),
            "verl's Megatron",
            "merge --backend megatron --local_dir {0} --target_dir {0}_hf",
        ),
        (
            ("common.pt", "metadata.json", *DCP),
            "Megatron (torch_dist)",
            "convert_torch_dist_to_hf.py --input-dir {0} --output-dir {0}_hf",
        ),
        (DCP, "torch (FSDP)", "accelerate merge-weights {0} {0}_hf"),
        (("zero_to_fp32.py", "latest"), "ZeRO", "{0}/zero_to_fp32.py {0} {0}_hf"),
    ],
)
def test_shards_are_refused_with_the_command_that_merges_them(names, words, command, tmp_path):
    folder = files(tmp_path / "step", *names)
    with pytest.raises(RcdiagError) as caught:
        check_checkpoint(str(folder))
    assert words in caught.value.message
    assert command.format(folder) in caught.value.hint
    assert f"then give {folder}_hf" in caught.value.hint


def test_the_parent_folder_is_recognised(tmp_path):
    """verl's global_step_N has actor/ and critic/; an HF Trainer checkpoint has its shards."""
    files(tmp_path / "checkpoint-5", "training_args.bin", "config.json")
    files(tmp_path / "checkpoint-5" / "pytorch_model_fsdp_0", *DCP)
    with pytest.raises(RcdiagError, match="torch \\(FSDP\\)"):
        check_checkpoint(str(tmp_path / "checkpoint-5"))
    files(tmp_path / "global_step_5" / "actor", *VERL)
    with pytest.raises(RcdiagError) as caught:
        check_checkpoint(str(tmp_path / "global_step_5"))
    assert f"--local_dir {tmp_path / 'global_step_5' / 'actor'} " in caught.value.hint


def test_merged_weights_beside_shards_are_taken(tmp_path):
    """HF's Trainer keeps DeepSpeed's states next to the saved model."""
    names = ("zero_to_fp32.py", "global_step5/a_model_states.pt", "config.json")
    folder = files(tmp_path / "checkpoint-5", *names, "model.safetensors")
    assert check_checkpoint(str(folder)) == folder


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.slow  # imports accelerate's command line
def test_the_command_for_torch_s_checkpoints_merges_them(tmp_path, qwen3):
    import torch.distributed.checkpoint as dcp

    weights = load_file(qwen3 / "model.safetensors")
    shards = tmp_path / "pytorch_model_fsdp_0"
    dcp.save({"model": weights}, checkpoint_id=shards, no_dist=True)
    with pytest.raises(RcdiagError) as caught:
        check_checkpoint(str(shards))
    command = shlex.split(caught.value.hint.split(": ", 1)[1].split(", and copy")[0])
    program = Path(sys.executable).with_name(command[0])
    subprocess.run([program, *command[1:]], check=True, capture_output=True)
    merged = load_file(tmp_path / "pytorch_model_fsdp_0_hf" / "model.safetensors")
    assert merged.keys() == weights.keys()
    assert all(torch.equal(merged[name], weights[name]) for name in weights)
