"""rLLM's episodes, one JSON file or line each, if their steps hold token ids.

Episodes that are dumped whole do (`Episode.to_dict()`, `model_dump()`, `rllm eval` with
--save-episodes). `EpisodeLogger` writes the text of steps, without ids and log-probs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from rcdiag.table.readers.gather import gathering
from rcdiag.table.readers.jsonl import Id, Int, check_length, floats, records
from rcdiag.table.readers.reader import Dump, Notes, Reader
from rcdiag.table.readers.turns import Turn, rows_of_turns, turn_of

ASK = (
    "rLLM's EpisodeLogger (trainer.episode_log_dir) omits prompt_ids, response_ids and logprobs "
    "of the steps: where it is called, dump whole episodes, one line of "
    "json.dumps(episode.to_dict()) each, or record rows with rcdiag.Recorder (docs/recording.md)"
)

WITHOUT_IDS = "a step without response_ids is left out"
LAST_REWARD = "reward: that of the last step if a trajectory has none of its own, as in rLLM"


class Step(msgspec.Struct):
    """A call of the model."""

    prompt_ids: list[Id] | None = None
    response_ids: list[Id] | None = None
    logprobs: list[float] | None = None
    chat_completions: list[Any] | None = None
    advantage: list[float] | float | None = None
    weight_version: Int | None = None
    reward: float | None = None
    model_output: Any = None


class Trajectory(msgspec.Struct):
    name: str | None = None
    uid: str | None = None
    reward: float | None = None
    steps: list[Step] = []


class RllmEpisode(msgspec.Struct):
    trajectories: list[Trajectory]
    id: str | None = None
    episode_id: str | None = None
    training_step: Int | None = None
    step: Int | None = None


def _rows(file: Path, dump: Dump) -> Iterator[tuple[int, dict[str, Any]]]:
    for where, number, episode in records(file, RllmEpisode):
        task, colon, _ = (episode.id or episode.episode_id or "").partition(":")
        step = episode.step if episode.training_step is None else episode.training_step
        for place, trajectory in enumerate(episode.trajectories):
            here = f"{where}, trajectory {place}"
            # An episode is called "task:rollout"; rLLM compares trajectories of the same name.
            group = f"{task}:{trajectory.name}" if task and colon else None
            reward = trajectory.reward
            if reward is None and trajectory.steps:
                dump.notes.changes.setdefault(LAST_REWARD, 0)
                reward = trajectory.steps[-1].reward
            columns = {
                "reward": reward,
                "group_id": group,
                "trajectory": trajectory.uid,
                "agent": trajectory.name,
                "step": step,
            }
            turns = _turns(trajectory, number, here, dump.notes)
            yield from rows_of_turns(turns, dump, columns)


def _turns(trajectory: Trajectory, number: int, where: str, notes: Notes) -> Iterator[Turn]:
    for place, step in enumerate(trajectory.steps):
        here = f"{where}, step {place}"
        if not step.response_ids and not step.logprobs:
            notes.change(WITHOUT_IDS, 1)
            continue
        tokens, output = step.response_ids or [], step.model_output
        # The chat of a step ends with the answer that was sampled in it.
        *before, last = step.chat_completions or [None]
        answered = isinstance(last, dict) and last.get("role") == "assistant"
        turn = turn_of(
            number,
            here,
            step.prompt_ids or None,
            tokens,
            step.logprobs or None,
            ("logprobs", "response_ids"),
            messages=before if answered else [],
            policy_version=step.weight_version,
            finish_reason=output.get("finish_reason") if isinstance(output, dict) else None,
        )
        if step.advantage is not None:
            advantages = step.advantage
            if isinstance(advantages, list):
                check_length(advantages, len(tokens), here, "advantage", "response_ids")
            else:
                advantages = [advantages] * len(tokens)
            turn = replace(turn, numbers={**turn.numbers, "advantages": floats(advantages)})
        yield turn


RLLM = Reader(
    name="rllm",
    says="rLLM's episodes with the token ids of their steps, a file or a JSON line each.",
    patterns=("episode_*.json", "*episodes*.jsonl"),
    detect=lambda peek: (
        isinstance(peek.record.get("trajectories"), list)
        and {"is_correct", "termination_reason"} <= peek.keys
    ),
    read=gathering(_rows, "episodes of rLLM, and no step has response_ids", ASK),
    source="https://github.com/rllm-org/rllm/blob/main/rllm/types.py",
)
