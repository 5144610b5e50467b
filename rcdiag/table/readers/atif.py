"""Trajectories in the Agent Trajectory Interchange Format (ATIF), if steps include token ids.

Harbor writes them next to a trial's result, as agent/trajectory.json. They hold the same calls as
the result's rollout_details, but no reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rcdiag.table.readers.gather import gathering
from rcdiag.table.readers.harbor import ASK, AgentInfo
from rcdiag.table.readers.jsonl import Id, Int, records
from rcdiag.table.readers.reader import Dump, Notes, Reader
from rcdiag.table.readers.turns import Turn, rows_of_turns, turn_of

COPIED = (
    "a step that ATIF marks as copied from an earlier trajectory (is_copied_context) is left out"
)
SEVERAL = "a step that stands for several calls of the model (llm_call_count) is left out"


class Metrics(msgspec.Struct):
    prompt_token_ids: list[Id] | None = None
    completion_token_ids: list[Id] | None = None
    logprobs: list[float] | None = None


class Output(msgspec.Struct):
    """The answer of a tool or of the environment."""

    content: Any = None


class StepObservation(msgspec.Struct):
    results: list[Output] | None = None


class AtifStep(msgspec.Struct):
    source: str | None = None
    message: Any = None
    tool_calls: list[Any] | None = None
    observation: StepObservation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: Int | None = None


class Atif(msgspec.Struct):
    """A trajectory, with those of its subagents."""

    steps: list[AtifStep] | None = None
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AgentInfo | None = None
    subagent_trajectories: list[Atif] | None = None


def _rows(file: Path, dump: Dump) -> Iterator[tuple[int, dict[str, Any]]]:
    for where, number, trajectory in records(file, Atif):
        columns = {"trajectory": trajectory.session_id}
        yield from _of_atif(trajectory, number, where, dump, columns)


def _of_atif(
    trajectory: Atif, number: int, where: str, dump: Dump, columns: dict[str, Any]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a trajectory and of its subagents' trajectories."""
    own = {**columns, "agent": trajectory.agent.name if trajectory.agent else None}
    yield from rows_of_turns(_of_steps(trajectory, number, where, dump.notes), dump, own)
    for place, inner in enumerate(trajectory.subagent_trajectories or ()):
        here = f"{where}, subagent {place}"
        # A subagent may share the session of its parent; its own id distinguishes it.
        name = inner.trajectory_id or inner.session_id or columns["trajectory"]
        yield from _of_atif(inner, number, here, dump, {**columns, "trajectory": name})


def _of_steps(trajectory: Atif, number: int, where: str, notes: Notes) -> Iterator[Turn]:
    chat: list[dict[str, Any]] = []
    for place, step in enumerate(trajectory.steps or ()):
        before = list(chat)
        chat += _messages(step)
        metrics = step.metrics
        if metrics is None or not (metrics.completion_token_ids or metrics.logprobs):
            continue
        if step.is_copied_context or (step.llm_call_count or 1) > 1:
            notes.change(COPIED if step.is_copied_context else SEVERAL, 1)
            continue
        yield turn_of(
            number,
            f"{where}, step {place}",
            metrics.prompt_token_ids or None,
            metrics.completion_token_ids or [],
            metrics.logprobs or None,
            ("logprobs", "completion_token_ids"),
            messages=before,
        )


def _messages(step: AtifStep) -> list[dict[str, Any]]:
    """Return the chat messages of a step: the message itself, and answers of tools or the terminal.

    For an agent that calls no tools, such as terminus-2, the terminal's answer has the role user.
    """
    role = "assistant" if step.source == "agent" else step.source or "user"
    said = {"role": role, "content": step.message or ""}
    observed = step.observation.results if step.observation else None
    answers = "tool" if step.tool_calls else "user"
    return [said, *({"role": answers, "content": one.content} for one in observed or ())]


ATIF = Reader(
    name="atif",
    says="Agent trajectories (ATIF) with token ids in the metrics of steps, as Harbor writes.",
    patterns=("trajectory*.json", "*.trajectory.json"),
    detect=lambda peek: str(peek.record.get("schema_version", "")).startswith("ATIF-"),
    read=gathering(_rows, "agent trajectories (ATIF), and no step has token ids", ASK),
    source="https://github.com/harbor-framework/harbor/blob/main/docs/rfcs/"
    "0001-trajectory-format.md",
)
