"""Advantages against verl's own code."""

from __future__ import annotations

import ast
import types
import typing
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcdiag.usecases.replay.token_advantages import ADVANTAGES
from tests.losses.batches import _grid
from tests.oracle.verl import PACKAGES, _execute, _masked_functions, _wheel

pytestmark = pytest.mark.oracle


@cache
def advantages_code(trainer: str) -> types.SimpleNamespace:
    import torch

    wheel = _wheel(PACKAGES[trainer])
    tree = ast.parse(wheel.read("verl/trainer/ppo/core_algos.py").decode())
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_outcome_advantage"):
            node.decorator_list = []
            body.append(node)
    functions = _masked_functions(wheel.read("verl/utils/torch_functional.py").decode())
    space = {**vars(typing), "torch": torch, "np": np, "defaultdict": defaultdict}
    space |= {"verl_F": functions, "AlgoConfig": object, "__name__": "core_algos"}
    return _execute(body, "core_algos", space)


VERL_NAMES = {
    "grpo": "compute_grpo_outcome_advantage",
    "rloo": "compute_rloo_outcome_advantage",
    "reinforce++": "compute_reinforce_plus_plus_outcome_advantage",
}
REWARDS = st.integers(-8, 8).map(lambda count: count / 4)


@pytest.mark.parametrize("source", list(VERL_NAMES))
@given(data=st.data(), rows=st.integers(2, 8), width=st.integers(2, 5))
@settings(max_examples=150)
def test_advantages_are_verls(source, data, rows, width):
    """With masked tokens; the reward is at the last unmasked token, as in verl."""
    import torch

    mask = _grid(data.draw, st.sampled_from((True, True, False)), rows, width)
    mask[:, 0] = True
    reward = np.array(data.draw(st.lists(REWARDS, min_size=rows, max_size=rows)))
    group = np.array(data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    # In float32 as in verl; in float64 its 1e-8 on the token count would change the mean.
    dtype = torch.float32 if source == "reinforce++" else torch.float64
    by_token = torch.zeros(mask.shape, dtype=dtype)
    last = width - 1 - mask[:, ::-1].argmax(axis=1)
    by_token[np.arange(rows), last] = torch.tensor(reward, dtype=dtype)
    given_: dict[str, Any] = {"index": group}
    if source == "reinforce++":
        given_ = {"config": types.SimpleNamespace(gamma=1.0)}
    function = getattr(advantages_code("verl-0.9"), VERL_NAMES[source])
    expected, _ = function(by_token, torch.tensor(mask, dtype=dtype), **given_)
    result = ADVANTAGES[source](reward, group.astype(np.uint64), mask.sum(axis=1))
    slack = 1e-5 if source == "reinforce++" else 1e-9
    np.testing.assert_allclose(result[:, None] * mask, expected.numpy(), rtol=1e-6, atol=slack)
