"""verl's own code of any generation, taken out of its published wheel with what it needs.

The wheel is downloaded once per run, without its dependencies. Only the helper, the masked means of
`torch_functional` and the class of the presets are executed, on CPU.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import subprocess
import sys
import types
import typing
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tests.corrections.builders import Padded

PACKAGES = {
    "verl-0.6.0": "0.6.0",
    "verl-0.6.1": "0.6.1",
    "verl-0.7.0": "0.7.0",
    "verl-0.7.1": "0.7.1",
    "verl-0.8.0": "0.8.0",
    "verl-0.9": "0.9.1",
}
# What the helper's function takes of the settings; the others choose the loss.
ARGUMENTS = (
    "rollout_is",
    "rollout_is_threshold",
    "rollout_rs",
    "rollout_rs_threshold",
    "rollout_rs_threshold_lower",
    "rollout_token_veto_threshold",
    "rollout_is_batch_normalize",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What the helper gives; all [rows, longest]."""

    weights: np.ndarray | None
    kept: np.ndarray  # of the mask, after rejection
    metrics: dict[str, float]


@cache
def _wheel(version: str) -> zipfile.ZipFile:
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        subprocess.run([*command, f"verl=={version}"], check=True, capture_output=True)
        return zipfile.ZipFile(io.BytesIO(next(Path(folder).glob("verl-*.whl")).read_bytes()))


class _Proto:
    """Stands for verl's DataProto: what the helper hands its weights out in."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.batch = tensors

    @classmethod
    def from_dict(cls, tensors: dict[str, Any]) -> _Proto:
        return cls(tensors)


def _execute(body: list[ast.stmt], name: str, space: dict[str, Any]) -> types.SimpleNamespace:
    exec(compile(ast.Module(body, []), name, "exec"), space)
    return types.SimpleNamespace(**space)


def _masked_functions(source: str) -> types.SimpleNamespace:
    """`masked_*` of torch_functional alone: the module imports half of a training stack."""
    import torch

    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    expected = [node for node in functions if node.name.startswith(("masked_", "distributed_"))]
    return _execute(list(expected), "torch_functional", {"torch": torch})


def _is_of_verl(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return str(node.module).startswith("verl")
    return isinstance(node, ast.Import) and node.names[0].name.startswith("verl")


@cache
def helper(trainer: str) -> types.SimpleNamespace:
    """The functions of verl's helper module."""
    wheel = _wheel(PACKAGES[trainer])
    functions = _masked_functions(wheel.read("verl/utils/torch_functional.py").decode())
    name = "mismatch_helper" if trainer == "verl-0.6.0" else "rollout_corr_helper"
    tree = ast.parse(wheel.read(f"verl/trainer/ppo/{name}.py").decode())
    space: dict[str, Any] = {"verl_F": functions, "DataProto": _Proto, "__name__": name}
    space |= dict.fromkeys(("RolloutCorrectionConfig", "PolicyLossConfig"), object)
    return _execute([node for node in tree.body if not _is_of_verl(node)], name, space)


@cache
def settings_class(trainer: str) -> Any:
    """`RolloutCorrectionConfig`, whose class methods are the presets."""
    source = _wheel(PACKAGES[trainer]).read("verl/trainer/config/algorithm.py").decode()
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    expected = [node for node in classes if node.name == "RolloutCorrectionConfig"]
    # `dataclass` looks its module up to read the annotations.
    space = {**vars(typing), "dataclass": dataclasses.dataclass, "field": dataclasses.field}
    space |= {"BaseConfig": object, "__name__": __name__}
    return _execute(list(expected), "algorithm", space).RolloutCorrectionConfig


def ask(trainer: str, config: dict[str, Any], batch: Padded, dtype: str = "float64") -> Answer:
    """The helper's answer on a batch; `config` holds all settings."""
    import torch

    old, rollout = (
        torch.tensor(values, dtype=getattr(torch, dtype)) for values in (batch.old, batch.rollout)
    )
    # Masks of verl are whole numbers; in float64 that would cost its epsilon of 1e-8.
    mask = torch.tensor(batch.mask, dtype=torch.float64 if dtype == "float64" else torch.int64)
    tensors = {"old_log_prob": old, "rollout_log_prob": rollout, "response_mask": mask}
    result = helper(trainer)
    if trainer == "verl-0.6.0":
        given = {name: value for name, value in config.items() if name != "rollout_is"}
        proto, metrics = result.compute_rollout_importance_weights(**tensors, **given)
        kept = mask
    else:
        given = {name: value for name, value in config.items() if name in ARGUMENTS}
        proto, kept, metrics = result.compute_rollout_correction_and_rejection_mask(
            **tensors, **given
        )
    weights = None if proto is None else proto.batch["rollout_is_weights"].numpy()
    return Answer(weights, kept.numpy() * batch.mask, metrics)
