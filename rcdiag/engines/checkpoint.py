"""Checks of a model folder before an engine loads it: completeness, limits, weights fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcdiag.engines.sharded import refuse_shards
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import ModelLimits

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")

# Files up to this size are hashed completely, larger ones in evenly spaced blocks, in which any
# optimizer step changes something: hashing 100 GB must not take longer than loading them.
HASHED_WHOLE = 256 << 20
BLOCK, BLOCKS = 1 << 20, 128


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a policy's model that are known before an engine starts."""

    limits: ModelLimits
    fingerprint: str  # of the weights, or of a server's description, or "unknown"
    program: str = ""  # sizes and times of the files of a `command` policy, to notice edits


def checkpoint_facts(spec: PolicySpec) -> ModelFacts:
    """Return limits and fingerprint of a policy's checkpoint; refuse an incomplete one."""
    folder = check_checkpoint(spec.model)
    return ModelFacts(limits(spec.model, folder), fingerprint(folder))


def resolve_model(model: str) -> Path:
    """Return the folder of a checkpoint: a local path, or the cached download of a hub id."""
    if os.path.isdir(model):  # pathlib raises an error for a name that is too long
        return Path(model)
    if os.path.exists(model):
        raise RcdiagError(f"model {model}: a file, wanted a folder", hint="give its folder")
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise RcdiagError(f"model {model}: no such folder", hint="give a checkpoint folder")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model))
    except Exception as error:  # the hub's errors have no common base class
        raise RcdiagError(
            f"model {model}: not a local folder, and the hub does not give it "
            f"({type(error).__name__})",
            hint="give a checkpoint folder, or download the model first",
        ) from error


def check_checkpoint(model: str) -> Path:
    """Return the folder of a checkpoint; refuse one without configuration or weights.

    Scoring reads token ids only, so it needs no tokenizer.
    """
    folder = resolve_model(model)
    refuse_shards(model, folder)
    if not (folder / "config.json").is_file():
        hint = "give the folder that save_pretrained wrote"
        raise RcdiagError(f"model {model}: no config.json in the folder", hint=hint)
    if not weight_files(folder):
        hint = "save it with save_pretrained, or copy the *.safetensors files as well"
        raise RcdiagError(f"model {model}: no weights ({', '.join(WEIGHTS)}) in the folder", hint)
    return folder


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a folder, sorted by name within each file type."""
    return sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))


def read_config(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's config.json."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RcdiagError(f"{path}: not JSON ({error})", "copy it again") from error
    if not isinstance(config, dict):
        raise RcdiagError(f"{path}: no JSON object", "copy it again")
    return config


def text_config(folder: Path) -> dict[str, Any]:
    """Return the text model's part of config.json, which multimodal models nest."""
    config = read_config(folder)
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) and inner else config


def limits(model: str, folder: Path) -> ModelLimits:
    """Return the sizes of vocabulary and context that a checkpoint's config.json states."""
    config = text_config(folder)
    if "vocab_size" not in config:
        raise RcdiagError(f"model {model}: config.json states no vocab_size", "is it a text model?")
    sizes = {name: config.get(name) for name in ("vocab_size", "max_position_embeddings")}
    for name, size in sizes.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise RcdiagError(
                f"model {model}: config.json states {name} = {size!r}",
                "a positive whole number is needed; copy it again",
            )
    return ModelLimits(model, config["vocab_size"], sizes["max_position_embeddings"])


def fingerprint(folder: Path) -> str:
    """Hash a checkpoint's weights: file names, sizes and bytes (blocks of large files)."""
    digest = hashlib.blake2b(digest_size=16)
    for path in weight_files(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as stream:
            if size <= HASHED_WHOLE:
                digest.update(stream.read())
                continue
            for block in range(BLOCKS):
                stream.seek((size - BLOCK) * block // (BLOCKS - 1))
                digest.update(stream.read(BLOCK))
    return digest.hexdigest()
