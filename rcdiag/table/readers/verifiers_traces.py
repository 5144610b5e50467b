"""Episodes of verifiers: trees of messages, in which each path from root to leaf is one sample.

https://github.com/PrimeIntellect-ai/verifiers/blob/main/verifiers/v1/graph.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.arrow import FLOATS, IDS
from rcdiag.table.readers.jsonl import Bit, Id, Int, bits, check_length
from rcdiag.table.readers.reader import Notes
from rcdiag.table.readers.requests import Sampling

# verifiers 0.4 rounds log-probs to this number of decimals.
DECIMALS = 4

UNTRAINED = "a trace of an agent that is not trained, or an abandoned branch of one, is left out"
EMPTY = "an episode without traces, or a trace without messages, is left out"
UNSAMPLED = "a branch of a trace without sampled tokens is left out"
FAILED = "a trace that ended in an error keeps its rows; their response_mask is 0, as in training"
SHARED = (
    "sampled tokens that several branches of a trace share are in the row of each branch, as in "
    "training"
)
MIXED = "calls of one row were sampled with different {name}: the row's {name} is unknown"
SPANNED = (
    "weights changed while an episode was sampled: its policy_version is unknown; "
    "first_policy_version and last_policy_version are the versions at its start and end"
)

# Field of a node, one value per sampled token of the node -> column of the table.
STREAMS = {
    "logprobs": "rollout_log_probs",
    "trainer_logprobs": "old_log_probs",
    "reference_logprobs": "ref_log_probs",
    "entropies": "old_entropy",
    "advantages": "advantages",
}


class NodeCall(msgspec.Struct):
    """A call of the model; `node` is the message that it sampled."""

    node: Int | None = None
    sampling: Sampling | None = None
    finish_reason: str | None = None


class NodeLink(msgspec.Struct):
    node: Int | None = None
    type: str | None = None


class Node(msgspec.Struct):
    """A message with the tokens that it adds; lists of numbers cover only its sampled tokens."""

    parent: Int | None = None
    token_ids: list[Id] = []
    mask: list[Bit] = []
    logprobs: list[float] | None = None
    advantages: list[float] | None = None
    reference_logprobs: list[float] | None = None
    trainer_logprobs: list[float] | None = None
    entropies: list[float] | None = None
    semantic_parents: list[NodeLink] = []


class Reward(msgspec.Struct):
    score: float | None = None  # None if the reward was not computed
    weight: float = 1.0


class Agent(msgspec.Struct):
    name: str | None = None
    trainable: bool = True


class Trace(msgspec.Struct):
    nodes: list[Node] | None = None
    calls: list[NodeCall] = []
    agent: Agent | str | None = None
    rewards: dict[str, Reward | float | None] = {}
    errors: list[Any] = []


class Group(msgspec.Struct):
    id: str | Int | None = None


class TracePolicy(msgspec.Struct):
    start: Int | None = None
    end: Int | None = None


class Work(msgspec.Struct):
    type: str | None = None
    step: Int | None = None
    policy: TracePolicy | None = None


class Run(msgspec.Struct):
    work: Work | None = None


class Environment(msgspec.Struct):
    id: str | None = None
    name: str | None = None


class Episode(Trace):
    """An episode with the traces of its agents, or a single trace."""

    traces: list[Trace] | None = None
    group: Group | str | None = None
    run: Run | None = None
    env: Environment | str | None = None


@dataclass
class RoundedLogProbs:
    """Checks whether no log-prob so far has more than DECIMALS decimals."""

    values: int = 0
    rounded: bool = True

    def add(self, values: list[float]) -> None:
        self.values += len(values)
        if self.rounded and values:
            scaled = np.array(values, np.float64) * 10**DECIMALS
            finite = scaled[np.isfinite(scaled)]
            self.rounded = bool((np.abs(finite - np.rint(finite)) < 1e-6).all())

    def note(self, notes: Notes) -> None:
        if self.rounded and self.values:
            notes.change(
                f"log-probs of traces are rounded to {DECIMALS} decimals, by up to 0.00005: "
                "differences below that are rounding, and nearly equal values appear equal"
            )
            notes.describe("rollout", decimals=DECIMALS)


def samples(
    episode: Episode, where: str, notes: Notes, rounding: RoundedLogProbs
) -> Iterator[dict[str, Any]]:
    """Yield one row per branch of each trained trace."""
    common = _of_episode(episode, notes)
    traces = [episode] if episode.traces is None else episode.traces
    if not traces:
        notes.change(EMPTY, 1)
    for place, trace in enumerate(traces):
        here = where if episode.traces is None else f"{where}, trace {place}"
        if trace.nodes is None:
            raise RcdiagError(
                f"{here}: no `nodes`, so this is not a trace of verifiers",
                hint="records of verifiers before version 1 of its traces are not read",
            )
        if isinstance(trace.agent, Agent) and not trace.agent.trainable:
            notes.change(UNTRAINED, 1)
            continue
        for row in _branches(trace, here, notes, rounding):
            yield {**row, **common}


def _of_episode(episode: Episode, notes: Notes) -> dict[str, Any]:
    """Return the columns that all rows of an episode share."""
    work = episode.run.work if episode.run else None
    policy = work.policy if work else None
    group = episode.group.id if isinstance(episode.group, Group) else episode.group
    env = episode.env
    columns: dict[str, Any] = {
        "group_id": None if group is None else str(group),
        "step": work.step if work else None,
        "env_name": (env.name or env.id or None) if isinstance(env, Environment) else env,
    }
    if policy is not None and policy.start == policy.end:
        return {**columns, "policy_version": policy.start}
    if policy is not None:
        notes.change(SPANNED)
        versions = {"first_policy_version": policy.start, "last_policy_version": policy.end}
        return {**columns, **versions}
    return columns


def _branches(
    trace: Trace, where: str, notes: Notes, rounding: RoundedLogProbs
) -> Iterator[dict[str, Any]]:
    """Yield one row per trained path of a trace from root to leaf."""
    nodes = trace.nodes or []
    if not nodes:
        notes.change(EMPTY, 1)
    masks = [_checked(nodes, place, where) for place in range(len(nodes))]
    for node in nodes:
        rounding.add(node.logprobs or [])
    parents = {node.parent for node in nodes}
    leaves = [place for place in range(len(nodes)) if place not in parents]
    links = [link for node in nodes for link in node.semantic_parents]
    resumed = {link.node for link in links if link.type == "compaction"}
    rewards: list[float] = []
    for reward in trace.rewards.values():
        score, weight = (
            (reward.score, reward.weight) if isinstance(reward, Reward) else (reward, 1.0)
        )
        if score is not None:
            rewards.append(score * weight)
    seen: set[int] = set()
    for leaf in leaves:
        attempt = any(link.type == "compaction_attempt" for link in nodes[leaf].semantic_parents)
        if attempt and leaf not in resumed:
            notes.change(UNTRAINED, 1)
            continue
        path = [leaf]
        while (parent := nodes[path[-1]].parent) is not None:
            path.append(parent)
        path.reverse()  # from the root to the leaf
        row = _sample(nodes, masks, path)
        if row is None:
            notes.change(UNSAMPLED, 1)
            continue
        sampled = {place for place in path if masks[place].any()}
        if sampled & seen:
            notes.change(SHARED, 1)
        seen |= sampled
        if trace.errors:
            notes.change(FAILED, 1)
            row["response_mask"] = np.zeros_like(row["response_mask"])
        yield {
            **row,
            "reward": float(sum(rewards)) if rewards else None,
            **_of_calls(trace.calls, set(path), notes),
        }


def _checked(nodes: list[Node], place: int, where: str) -> NDArray[np.uint8]:
    """Return the mask of a node; raise an error if its fields have inconsistent lengths."""
    node, here = nodes[place], f"{where}, node {place}"
    if node.parent is not None and not 0 <= node.parent < place:
        raise RcdiagError(
            f"{here}: its `parent` is {node.parent}, which is not an earlier node",
            hint="every message follows an earlier one; the record is damaged",
        )
    check_length(node.mask, len(node.token_ids), here, "mask", "token_ids")
    mask = bits(node.mask, here, "mask")
    sampled = int(mask.sum())
    for field in STREAMS:
        values = getattr(node, field)
        if values:
            check_length(values, sampled, here, field, "sampled tokens of mask")
    return mask


def _sample(
    nodes: list[Node], masks: list[NDArray[np.uint8]], path: list[int]
) -> dict[str, Any] | None:
    """Return prompt and response of a path; None if no token on it was sampled."""
    mask = np.concatenate([masks[place] for place in path])
    if not mask.any():
        return None
    tokens = np.concatenate([np.array(nodes[place].token_ids, IDS) for place in path])
    start = int(np.argmax(mask))
    row: dict[str, Any] = {
        "prompt_ids": tokens[:start],
        "response_ids": tokens[start:],
        "response_mask": mask[start:],
    }
    sampling = [place for place in path if masks[place].any()]
    for field, column in STREAMS.items():
        having = [place for place in sampling if getattr(nodes[place], field)]
        # A message without advantages has an advantage of 0. For a message without log-probs, the
        # log-probs are unknown.
        if having and (having == sampling or field == "advantages"):
            row[column] = _spread(nodes, masks, path, field, mask)[start:]
    return row


def _spread(
    nodes: list[Node],
    masks: list[NDArray[np.uint8]],
    path: list[int],
    field: str,
    mask: NDArray[np.uint8],
) -> NDArray[np.float32]:
    """Place a field's values at the sampled tokens of a path; 0.0 at all other tokens."""
    values: list[float] = []
    for place in path:
        values += getattr(nodes[place], field) or [0.0] * int(masks[place].sum())
    out = np.zeros(len(mask), FLOATS)
    with np.errstate(over="ignore"):
        out[mask == 1] = np.array(values, np.float64)
    return out


def _of_calls(calls: list[NodeCall], path: set[int], notes: Notes) -> dict[str, Any]:
    """Return the sampling parameters that all calls of a path share, and the last finish reason."""
    own = [call for call in calls if call.node in path]
    if not own:
        return {}
    columns: dict[str, Any] = {"finish_reason": own[-1].finish_reason}
    for name in Sampling.__struct_fields__:
        values = {getattr(call.sampling, name, None) for call in own}
        if len(values) == 1:
            columns[name] = values.pop()
        else:
            notes.change(MIXED.format(name=name), 1)
    return columns
