"""What vLLM returns is matched to its rows; no engine is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rcdiag.engines.vllm.engine import VllmEngine
from rcdiag.errors import RcdiagError
from tests.builders import write_table
from tests.engines.test_rows import rows_of

pytestmark = pytest.mark.engine
PROMPTS, RESPONSES = [[1], [2, 3], [1], [4]], [[5], [6, 7], [], [8, 9, 10]]
SCORED = [0, 1, 3]  # rows with response tokens


class Answers:
    """An engine whose scores of a row are -1, -2, ...; `change` changes its list of outputs."""

    def __init__(self, change) -> None:
        self.change = change

    def encode(self, prompts: list[Any], *_: Any, **__: Any) -> list[Any]:
        data = [-torch.arange(1.0, len(RESPONSES[row]) + 1)[:, None] for row in SCORED]
        return self.change(
            [
                SimpleNamespace(outputs=SimpleNamespace(data=values), **prompt)
                for values, prompt in zip(data, prompts, strict=True)
            ]
        )

    def generate(self, prompts: list[Any], *_: Any, **__: Any) -> list[Any]:
        return self.change(
            [
                SimpleNamespace(outputs=[SimpleNamespace(token_ids=RESPONSES[row])], **prompt)
                for row, prompt in zip(SCORED, prompts, strict=True)
            ]
        )

    def collective_rpc(self, _: Any) -> list[Any]:
        places = [(key, at) for key, row in enumerate(SCORED) for at in range(len(RESPONSES[row]))]
        return [[(places, torch.tensor([[-1.0 - at] for _, at in places]))]]


def scores(path: str, table: Path, change: Any) -> np.ndarray:
    engine = VllmEngine.__new__(VllmEngine)
    engine.path, engine.engine, engine.lora = path, Answers(change), None
    engine.score_options = {"entropy": False, "top_k": 0}
    return engine.score(rows_of(table, 0, len(PROMPTS)), lambda tokens: None).log_probs


def another_token(outputs: list[Any]) -> list[Any]:
    outputs[1].outputs[0].token_ids = [6, 8]
    return outputs


@pytest.fixture
def table(tmp_path) -> Path:
    return write_table(tmp_path / "t.parquet", prompt_ids=PROMPTS, response_ids=RESPONSES)


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_each_row_gets_its_own_scores(path, table):
    assert scores(path, table, lambda outputs: outputs).tolist() == [-1, -1, -2, -1, -2, -3]


@pytest.mark.parametrize("path", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("change", "row"),
    [
        (lambda outputs: outputs[1:], 0),
        (lambda outputs: [outputs[0], outputs[2]], 1),
        (lambda outputs: outputs[:2], 3),
        (lambda outputs: [outputs[1], outputs[0], outputs[2]], 0),
        (lambda outputs: [], 0),
    ],
    ids=["without the first", "without the second", "without the last", "swapped", "nothing"],
)
def test_a_row_that_vllm_left_out_is_named(path, change, row, table):
    with pytest.raises(RcdiagError, match=f"row {row}: the engine returned no scores"):
        scores(path, table, change)


def test_a_row_that_was_not_decoded_as_it_was_forced_is_named(table):
    with pytest.raises(RcdiagError, match="row 1: the engine returned no scores"):
        scores("decode", table, another_token)


def test_a_row_with_a_token_that_was_not_decoded_is_named(table, monkeypatch):
    whole = Answers.collective_rpc

    def without_the_last(self: Answers, _: Any) -> list[Any]:
        ((places, values),) = whole(self, _)[0]
        return [[(places[:-1], values[:-1])]]

    monkeypatch.setattr(Answers, "collective_rpc", without_the_last)
    with pytest.raises(RcdiagError, match="row 3: the engine returned no scores"):
        scores("decode", table, lambda outputs: outputs)
