"""Harbor's trials: result.json stores the tokens of an agent's calls as rollout_details.

These are chats (harbor 0.26: models/agent/rollout_detail.py). Each has three lists with one list
per turn: prompt ids, sampled ids, log-probs. `atif` reads the trajectory in the same folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rcdiag.errors import RcdiagError
from rcdiag.table.given import REWARD_KEY
from rcdiag.table.readers.gather import gathering
from rcdiag.table.readers.jsonl import Id, records
from rcdiag.table.readers.reader import Dump, Reader
from rcdiag.table.readers.turns import Turn, rows_of_turns, turn_of

ASK = (
    "Harbor keeps token ids and log-probs with the agent's option `collect_rollout_details: true` "
    "(terminus-2, with a server that returns them); run the trials so, or record rows in the "
    "trainer by rcdiag.Recorder (docs/recording.md)"
)

WITHOUT_IDS = "a trial without token ids is left out"
REWARDS = "reward: of several rewards of the verifier, the one named `{name}` is used"


class Detail(msgspec.Struct):
    """A chat of an agent; each of the three fields has one list per turn, in order."""

    prompt_token_ids: list[list[Id]] | None = None
    completion_token_ids: list[list[Id]] | None = None
    logprobs: list[list[float]] | None = None


class Context(msgspec.Struct):
    rollout_details: list[Detail] | None = None


class Verified(msgspec.Struct):
    rewards: dict[str, float | None] | None = None


class Phase(msgspec.Struct):
    """A step of a trial of several steps, each with its own agent run and verdict."""

    step_name: str | None = None
    agent_result: Context | None = None
    verifier_result: Verified | None = None


class AgentInfo(msgspec.Struct):
    name: str | None = None


class Trial(msgspec.Struct):
    """A trial's result, or the context of an agent alone."""

    task_name: str | None = None
    trial_name: str | None = None
    agent_info: AgentInfo | None = None
    agent_result: Context | None = None
    verifier_result: Verified | None = None
    step_results: list[Phase] | None = None
    rollout_details: list[Detail] | None = None


def _rows(file: Path, dump: Dump) -> Iterator[tuple[int, dict[str, Any]]]:
    for where, number, trial in records(file, Trial):
        without = True
        for row in _of_trial(trial, number, where, dump):
            without = False
            yield number, row
        if without:
            dump.notes.change(WITHOUT_IDS, 1)


def _of_trial(trial: Trial, number: int, where: str, dump: Dump) -> Iterator[dict[str, Any]]:
    """Yield the rows of each chat in each step of a trial."""
    columns = {
        "group_id": trial.task_name,
        "trajectory": trial.trial_name,
        "agent": trial.agent_info.name if trial.agent_info else None,
    }
    context = trial.agent_result or Context(trial.rollout_details)
    whole = Phase(agent_result=context, verifier_result=trial.verifier_result)
    for phase in (whole, *(trial.step_results or ())):
        here = where if phase.step_name is None else f"{where}, step {phase.step_name}"
        details = (phase.agent_result.rollout_details if phase.agent_result else None) or ()
        reward = _reward(phase.verifier_result, here, dump)
        # The first chat is that of the agent; others are those of subagents, such as summaries.
        for place, detail in enumerate(details):
            turns = _of_chat(detail, number, f"{here}, rollout_details {place}")
            facts = {**columns, "reward": reward, "chat": place, "phase": phase.step_name}
            for _, row in rows_of_turns(turns, dump, facts):
                yield row


def _of_chat(detail: Detail, number: int, where: str) -> Iterator[Turn]:
    """Yield the turns of a chat; its three fields must have equally many lists."""
    tokens = detail.completion_token_ids or []
    for name in ("prompt_token_ids", "logprobs"):
        lists: Sequence[Any] | None = getattr(detail, name)
        if lists and len(lists) != len(tokens):
            raise RcdiagError(
                f"{where}: `{name}` has {len(lists)} turns, `completion_token_ids` has "
                f"{len(tokens)}: it is unknown which belong together",
                hint="Harbor leaves out what a call of the model did not return; the trajectory "
                "of the trial (agent/trajectory.json) keeps the lists of a turn together",
            )
    for turn, sampled in enumerate(tokens):
        yield turn_of(
            number,
            f"{where}, turn {turn}",
            detail.prompt_token_ids[turn] if detail.prompt_token_ids else None,
            sampled,
            detail.logprobs[turn] if detail.logprobs else None,
            ("logprobs", "completion_token_ids"),
        )


def _reward(verified: Verified | None, where: str, dump: Dump) -> float | None:
    """Return a trial's reward: the only one, the one that `reward_key` names, or `reward`."""
    rewards = (verified.rewards if verified else None) or {}
    key = dump.given.get(REWARD_KEY)
    if key is not None and rewards and key not in rewards:
        raise RcdiagError(
            f"{where}: the verifier has no reward `{key}`, only {', '.join(rewards)}",
            hint=f"give {REWARD_KEY} one of them",
        )
    if len(rewards) < 2 and key is None:
        return next(iter(rewards.values()), None)
    name = key or "reward"
    if name in rewards:
        dump.notes.changes.setdefault(REWARDS.format(name=name), 0)
    return rewards.get(name)


HARBOR = Reader(
    name="harbor",
    says="Harbor's trials: result.json with the agent's rollout_details.",
    patterns=("result.json",),
    detect=lambda peek: (
        {"task_name", "trial_name", "agent_info"} <= peek.keys
        or isinstance(peek.record.get("rollout_details"), list)
    ),
    read=gathering(_rows, "results of Harbor's trials, and none has rollout_details", ASK),
    asks_for=(REWARD_KEY,),
    source="https://pypi.org/project/harbor/",
)
