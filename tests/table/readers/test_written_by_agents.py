"""Turns written by the code of NeMo-Gym and Harbor from their wheels."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rcdiag.table.readers.atif import ATIF
from rcdiag.table.readers.harbor import HARBOR
from rcdiag.table.readers.nemo_gym import NEMO_GYM
from tests.oracle.published import functions, module
from tests.table.readers.rows_of import drawn_floats, rows_of
from tests.table.readers.test_harbor import trajectory, trial, written
from tests.table.readers.test_nemo_gym import message, rollout
from tests.table.readers.test_nemo_gym import written as written_lines

pytestmark = pytest.mark.oracle

GYM = ("nemo-gym", "0.7.0", "nemo_gym/token_id_capture/builder.py")
HARBOR_CHAT = ("harbor", "0.26.0", "harbor/llms/chat.py")
KEPT = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs")


def drawn_turns(seed: int, rewritten: float) -> list[tuple[list[int], list[int], list[float]]]:
    """Draw prompts, sampled tokens and log-probs; some turns have a rewritten history."""
    rng = np.random.default_rng(seed)

    def ids(most: int) -> list[int]:
        return rng.integers(0, 50, int(rng.integers(1, most))).tolist()

    history, turns = [seed, *ids(9)], []
    for _ in range(6):
        sampled = ids(7)
        turns.append((history, sampled, drawn_floats(rng, len(sampled))))
        history = history + sampled + ids(4)
        if rng.random() < rewritten:
            # The template drops sampled tokens, so the prompt does not continue the previous one.
            history = [*turns[-1][0], 99, *ids(5)]
    return turns


def gym() -> SimpleNamespace:
    """Return the functions by which NeMo-Gym rebuilds a response from captured calls."""
    names = ["ChainLink", "Chain", "BuildNotes", "BuildOutput", "project_chain_to_output_items"]
    names += ["project_main_chain_response", "assert_prefix_contiguity"]
    return functions(module(*GYM), names, {"dataclass": dataclass, "field": field})


def items_of(turns: list[Any]) -> list[dict[str, Any]]:
    return [message(*turn) for turn in turns]


@pytest.mark.parametrize("seed", range(40))
def test_a_rollout_is_one_row_if_nemo_gym_calls_it_contiguous(tmp_path, seed):
    turns = drawn_turns(seed, rewritten=0.1)
    try:
        gym().assert_prefix_contiguity({"output": items_of(turns)})
        contiguous = True
    except AssertionError:
        contiguous = False
    result = rows_of(NEMO_GYM, written_lines(tmp_path, rollout(*items_of(turns))))
    assert (len(result.rows) == 1) is contiguous
    assert sum(map(sum, result.column("response_mask"))) == sum(len(turn[1]) for turn in turns)


@pytest.mark.parametrize("seed", range(3))
def test_the_response_that_nemo_gym_rebuilds(tmp_path, seed):
    made, turns = gym(), drawn_turns(seed, rewritten=0.0)
    links, response, mask, values, before = [], [], [], [], turns[0][0]
    for prompt, sampled, log_probs in turns:
        between = prompt[len(before) :]
        entry = SimpleNamespace(
            prompt_token_ids=prompt,
            generation_token_ids=sampled,
            generation_log_probs=log_probs,
            routed_experts=None,
            output_items=[],
            token_item_index=None,
        )
        links.append(made.ChainLink(entry=entry, interstitial=between))
        response += between + sampled
        mask += [0] * len(between) + [1] * len(sampled)
        values += [0.0] * len(between) + log_probs
        before = prompt + sampled
    chain = made.Chain(chain_id="main", links=links, root_prompt=turns[0][0])
    out = made.BuildOutput(chains=[chain])
    rebuilt = made.project_main_chain_response("r", out)
    (row,) = rows_of(NEMO_GYM, written_lines(tmp_path, rollout() | {"response": rebuilt})).rows
    assert [row[name] for name in KEPT] == [turns[0][0], response, mask, values]


@pytest.mark.parametrize("seed", range(3))
def test_the_chat_that_harbor_keeps(tmp_path, seed):
    turns = drawn_turns(seed, rewritten=0.5)
    space = {"BaseLLM": None, "LLMResponse": None, "RolloutDetail": dict, "Any": Any, "Path": Path}

    class Model:
        def __init__(self) -> None:
            self.turns = iter(turns)

        async def call(self, **_: Any) -> SimpleNamespace:
            prompt, sampled, log_probs = next(self.turns)
            return SimpleNamespace(
                content="x",
                reasoning_content=None,
                response_id=None,
                usage=None,
                extra=None,
                prompt_token_ids=prompt,
                completion_token_ids=sampled,
                logprobs=log_probs,
            )

    chat = functions(module(*HARBOR_CHAT), ["Chat"], space).Chat(Model())
    for _ in turns:
        asyncio.run(chat.chat("prompt"))
    details = json.loads(json.dumps(chat.rollout_details))
    result = rows_of(HARBOR, written(tmp_path, trial(*details)))
    assert sum(sum(mask) for mask in result.column("response_mask")) == sum(
        len(sampled) for _, sampled, _ in turns
    )
    other = rows_of(ATIF, written(tmp_path, trajectory(*turns), "trajectory.json"))
    for name in KEPT:
        assert result.column(name) == other.column(name)
