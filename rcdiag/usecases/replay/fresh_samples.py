"""Fresh responses of a model to the prompts of a batch, with the user's reward function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError, setting
from rcdiag.learning.fresh_responses import SamplingSettings, as_trajectories
from rcdiag.learning.learner import Fresh
from rcdiag.learning.trainee import Trainee
from rcdiag.table.trajectories import Trajectories

# (prompt, response, row of the table) -> reward
Reward = Callable[[str, str, dict[str, Any]], float]
# Token ids -> their text, one string each.
Decode = Callable[[Sequence[int]], list[str]]

SAMPLES = 8  # responses to a prompt, if the table has no groups to tell


class Prompts(Struct, frozen=True, eq=False):
    """The distinct prompts of a batch."""

    ids: list[NDArray[np.int32]]
    group: NDArray[np.uint64]  # [prompts]
    rows: list[dict[str, Any]]  # a row of the table for each prompt
    temperature: float
    max_new_tokens: int
    samples: int  # responses to each prompt, as many as were recorded


def prompts_of(
    parts: Sequence[Trajectories], read: Callable[[list[int]], dict[int, dict[str, Any]]]
) -> Prompts:
    """Return the prompt of the first row of every group; `read` reads whole rows by number."""
    first: dict[int, tuple[NDArray[np.int32], int]] = {}
    temperatures, rows, longest = set(), 0, 1
    for part in parts:
        assert part.prompt_ids is not None
        for index in np.flatnonzero(part.sampled_lengths > 0):
            number = int(part.row[index])
            key = number if part.group is None else int(part.group[index])
            first.setdefault(key, (part.prompt_ids.row(int(index)), number))
            temperatures.add(float(part.scoring_temperature[index]))
            rows += 1
            longest = max(longest, int(part.response_ids.lengths[index]))
    if len(temperatures) != 1:
        raise RcdiagError(
            f"rows have {len(temperatures)} temperatures: fresh samples need a single one",
            hint=f"replay rows of one temperature, or take {setting('reference', 'seq_is')}",
        )
    keys = sorted(first)
    whole = read([first[key][1] for key in keys])
    return Prompts(
        ids=[first[key][0] for key in keys],
        group=np.array(keys, dtype=np.uint64),
        rows=[whole[first[key][1]] for key in keys],
        temperature=temperatures.pop(),
        max_new_tokens=longest,
        samples=max(round(rows / len(keys)), 1) if rows > len(keys) else SAMPLES,
    )


def sampler(
    trainee: Trainee, prompts: Prompts, reward: Reward, decode: Decode
) -> Callable[[int | None, int], Fresh]:
    """Return a function (count, seed) -> samples.

    `count` is the total number of responses; with None there are as many as were recorded.
    """

    def sample(count: int | None, seed: int) -> Fresh:
        of_prompt = prompts.samples if count is None else max(-(-count // len(prompts.ids)), 1)
        settings = SamplingSettings(
            temperature=prompts.temperature,
            max_new_tokens=prompts.max_new_tokens,
            seed=seed,
            samples=of_prompt,
        )
        samples = trainee.generate(prompts.ids, settings)
        rewards = np.array([_rewarded(prompts, one, reward, decode) for one in samples])
        group = prompts.group[[one.prompt for one in samples]]
        rows = replace(as_trajectories(prompts.ids, samples, prompts.temperature), group=group)
        return Fresh(parts=[rows], reward=rewards, group=group)

    return sample


def _rewarded(prompts: Prompts, one: Any, reward: Reward, decode: Decode) -> float:
    texts = ["".join(decode(ids.tolist())) for ids in (prompts.ids[one.prompt], one.ids)]
    try:
        value = float(reward(texts[0], texts[1], prompts.rows[one.prompt]))
    except Exception as error:
        raise RcdiagError(
            f"{setting('reward')}: the function failed ({type(error).__name__}: {error})",
            hint="it takes (prompt, response, row) and returns a number",
        ) from error
    if not np.isfinite(value):
        raise RcdiagError(
            f"{setting('reward')}: the function returned {value}",
            hint="it must return a finite number",
        )
    return value
