"""Record a DataProto of verl by the hook of the docs: verl_batch.py PROTOCOL.py PAGE DUMP."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import torch

import rcdiag
from tests.recorders.hooks import functions_of
from tests.table.readers.write_with_trainers import module


def main(protocol: str, page: str, dump: str) -> None:
    parts = ("device", "py_functional", "torch_functional", "transferqueue_utils")
    proto = module("verl.protocol", protocol, ["ray", *(f"verl.utils.{part}" for part in parts)])
    uid = np.empty(2, object)
    uid[:] = ["p0", "p0"]
    tensors = {
        "prompts": torch.tensor([[0, 5, 6], [7, 8, 9]]),
        "responses": torch.tensor([[1, 2, 3, 0], [4, 0, 0, 0]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]]),
        "response_mask": torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0]]),
        "rollout_log_probs": torch.tensor([[-0.5, 0.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]]),
        "old_log_probs": torch.tensor([[-0.25, -3.0, -2.0, 0.0], [-1.5, 0.0, 0.0, 0.0]]),
        "advantages": torch.tensor([[1.0, 1.0, 1.0, 0.0], [-1.0, 0.0, 0.0, 0.0]]),
        "token_level_scores": torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.5, 0.0, 0.0, 0.0]]),
    }
    batch = proto.DataProto.from_dict(
        tensors=tensors, non_tensors={"uid": uid}, meta_info={"temperature": 0.7}
    )
    hook = SimpleNamespace(**functions_of(page, {}))
    with rcdiag.Recorder(dump) as recorder:
        hook.record_verl(recorder, batch, 3)


if __name__ == "__main__":
    main(*sys.argv[1:])
