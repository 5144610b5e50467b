"""A complete external engine, which reads the probability of every token from the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rcdiag.engines import BACKENDS
from rcdiag.engines.backend import Backend, Option, OtherBatches, Progress
from rcdiag.engines.checkpoint import check_checkpoint, fingerprint, read_config
from rcdiag.engines.spec import PolicySpec
from rcdiag.table.trajectories import Scores, Trajectories

PROBABILITIES = np.arange(1, 17) / 136


def make_checkpoint(folder: Path) -> Path:
    """Write a checkpoint without a tokenizer: scoring reads token ids only."""
    folder.mkdir()
    config = {"vocab_size": len(PROBABILITIES), "probabilities": PROBABILITIES.tolist()}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


class ToyEngine:
    def __init__(self, spec: PolicySpec, max_length: int, log: Path) -> None:
        self.folder = check_checkpoint(spec.model)
        self.log_probs = np.log(read_config(self.folder)["probabilities"])
        self.tilt = spec.options.get("tilt", 0)

    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        ids = trajectories.response_ids.values
        progress(len(ids))
        return Scores(log_probs=(self.log_probs[ids] - self.tilt).astype(np.float32))

    def provenance(self) -> dict[str, Any]:
        return {"weights_fingerprint": fingerprint(self.folder), "device": "an abacus"}


TOY = Backend(
    name="toy",
    says="Toy: the log-probs that the checkpoint states.",
    role="engine",
    dtypes=("float32", "bfloat16"),
    default_dtype="float32",
    load=ToyEngine,
    options={
        "tilt": Option(says="nats taken off each log-prob", takes=int, shown="tilt {}"),
        "beads": Option(says="beads of the abacus", takes=int),
    },
    other_batches=OtherBatches(option="beads", size=7, smaller=5),
)


def register() -> None:
    BACKENDS.add(TOY)
