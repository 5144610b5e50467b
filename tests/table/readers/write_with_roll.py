"""Write a batch with ROLL's own DataProto; run as a script, with tensordict on the path.

    python write_with_roll.py CHECKOUT TENSORS.pt OUT.pkl

Modules that ROLL's file imports but that writing does not use are replaced by empty ones.
"""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

UNUSED = (
    "ray", "codetiming", "roll.distributed.scheduler.remote_protocol",
    "roll.distributed.scheduler.transfer_backend", "roll.utils.functionals", "roll.platforms",
    "roll.utils.logging",
)  # fmt: skip
NAME = "roll.distributed.scheduler.protocol"


def main() -> None:
    checkout, tensors, out = sys.argv[1:]
    for name in ("roll", "roll.distributed", "roll.distributed.scheduler", "roll.utils"):
        sys.modules[name] = types.ModuleType(name)
    for name in UNUSED:
        sys.modules[name] = MagicMock()
    parent = sys.modules["roll.distributed.scheduler"]
    parent.transfer_backend = MagicMock()  # type: ignore[attr-defined]
    made = sys.modules[NAME] = types.ModuleType(NAME)
    path = Path(checkout, *NAME.split(".")).with_suffix(".py")
    exec(compile(path.read_text(), str(path), "exec"), made.__dict__)
    batch = made.DataProto.from_dict(
        tensors=torch.load(tensors),
        non_tensors={"domain": np.array(["math"] * 6, object)},
        meta_info={"generation_config": {"temperature": 0.7, "top_p": 1.0, "top_k": -1}},
    )
    with Path(out).open("wb") as stream:
        pickle.dump(batch, stream)


if __name__ == "__main__":
    main()
