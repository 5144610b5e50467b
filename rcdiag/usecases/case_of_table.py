"""A table becomes a case: whole rows spread over the table, with every policy that it holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Case, RowFacts, joined_cases
from rcdiag.errors import RcdiagError
from rcdiag.table.hashing import hashed_lists, mixed
from rcdiag.table.stream import read_trajectories
from rcdiag.table.survey import unobserved
from rcdiag.table.table import Table
from rcdiag.table.trajectories import Trajectories

SAMPLER, TRAINER = "rollout", "old"
# A case holds at most about twice so many response tokens, of a larger table blocks of rows.
TOKENS = 120_000
# Neighbours stay together: where rows are exchanged, it is with one of them.
BLOCK = 16


def pair_of_table(
    table: Table, sampler: str | None = None, trainer: str | None = None
) -> tuple[str, str | None]:
    """Return sampler and trainer of a table: those named, `rollout` and `old`, or what it has."""
    names = table.policies
    if not names:
        raise RcdiagError(
            f"{table.name}: no column of log-probs",
            hint="a diagnosis needs `rollout_log_probs`, and tells more with `old_log_probs`: "
            + _way_out(table),
        )
    by_preference = sorted(names, key=lambda name: (name != SAMPLER, name == TRAINER))
    first = sampler or by_preference[0]
    others = sorted((name for name in names if name != first), key=lambda name: name != TRAINER)
    return first, trainer or next(iter(others), None)


def _way_out(table: Table) -> str:
    """Return what gives a table its log-probs; engines need the prompts for them."""
    if "prompt_ids" not in table.columns:
        return "dump them with the tokens; without `prompt_ids` no engine can compute them"
    return (
        "dump them with the tokens, or compute both: "
        f"rcdiag score {table.on_command_line} --model CKPT --policy rollout=vllm:bfloat16 "
        "--policy old=hf:float32 -o scored.parquet, then rcdiag diagnose scored.parquet"
    )


def read_case(
    table: Table,
    sampler: str,
    trainer: str | None,
    *,
    prompts: bool = False,
    tokens: int = TOKENS,
) -> Case:
    """Read whole rows of a table with all its policies; of a large one blocks of rows.

    Rows without log-probs of the pair are left out, and so are other policies that rows lack. Of
    a row with more than twice `tokens` tokens the first so many are taken.
    Which blocks are taken depends on their place alone, so that the same table makes the same case.
    """
    rows = CaseRows(table, sampler, trainer, prompts=prompts, tokens=tokens)
    read = prompts or "prompt_ids" in table.columns
    for some in read_trajectories(table, rows.policies, prompts=read, origin=True):
        rows.add(some)
    return rows.case()


class CaseRows:
    """Makes a case of rows while they are read, and holds no more of them than the case does.

    Without `prompts` the case holds the lengths of the prompts alone, where they are read.
    """

    def __init__(
        self,
        table: Table,
        sampler: str,
        trainer: str | None,
        *,
        prompts: bool = False,
        tokens: int = TOKENS,
    ) -> None:
        lacking = unobserved(table, table.policies).by_policy
        pair = (sampler, trainer)
        self.policies = [name for name in table.policies if name in pair or name not in lacking]
        self._table, self._pair, self._prompts, self._most = table, pair, prompts, 2 * tokens
        self._parts: list[Case] = []
        self._not_numbers: dict[str, tuple[int, int]] = {}
        self._share, self._held = 1.0, 0

    def add(self, rows: Trajectories) -> None:
        """Take in the next rows of the table, with log-probs of `policies` and their origin."""
        part = _case(self._table, rows, self.policies, *self._pair, prompts=self._prompts)
        _count_not_numbers(part, self._not_numbers)
        self._parts.append(part.take(_in_sample(part.row, self._share)).heads(self._most))
        self._held += len(self._parts[-1].mask)
        while self._held > self._most and self._share > 2.0**-30:
            self._share /= 2
            self._parts = [one.take(_in_sample(one.row, self._share)) for one in self._parts]
            self._held = sum(len(one.mask) for one in self._parts)

    def case(self) -> Case:
        """Return the case of all rows so far."""
        if not self._parts:
            raise RcdiagError(
                f"{self._table.name}: no row has log-probs of all policies of the pair"
            )
        return replace(joined_cases(self._parts), not_numbers=self._not_numbers)


def _count_not_numbers(part: Case, bad: dict[str, tuple[int, int]]) -> None:
    """Add the sampled tokens of some rows that have no number to the counts of the table."""
    for policy, values in part.log_probs.items():
        places = np.flatnonzero(part.mask & ~np.isfinite(values))
        if len(places):
            count, first = bad.get(policy, (0, int(part.row[part.owner[places[0]]])))
            bad[policy] = count + len(places), first


def _in_sample(row: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Flag the rows whose block belongs to a share of all blocks, [rows]."""
    if share >= 1.0:
        return np.ones(len(row), np.bool_)
    return mixed((row // BLOCK).astype(np.uint64)) < np.uint64(share * 2.0**64)


def _case(
    table: Table,
    rows: Trajectories,
    policies: Sequence[str],
    sampler: str,
    trainer: str | None,
    *,
    prompts: bool,
) -> Case:
    """Make a case of some rows, with the log-probs of some policies."""
    version = rows.policy_version
    return Case(
        sampler=sampler,
        trainer=trainer,
        row=rows.row,
        lengths=rows.response_ids.lengths,
        token_id=rows.response_ids.values,
        mask=rows.mask,
        log_probs={name: rows.log_probs[name] for name in policies},
        entropy={name: rows.entropy[name] for name in policies if name in rows.entropy},
        prompt_ids=rows.prompt_ids if prompts else None,
        facts=RowFacts(
            step=rows.step,
            group=rows.group,
            prompt=None if rows.prompt_ids is None else hashed_lists(rows.prompt_ids),
            engine=rows.engine,
            finish_reason=rows.finish_reason,
            temperature=rows.temperature,
            top_p=rows.sampling.get("top_p"),
            top_k=rows.sampling.get("top_k"),
            min_p=rows.sampling.get("min_p"),
            reward=rows.reward,
            advantage=rows.advantage,
            prompt_length=None if rows.prompt_ids is None else rows.prompt_ids.lengths,
            policy_version=version,
            version_by_token=version is not None and len(version) != len(rows),
        ),
        metadata=table.metadata,
        source=table.on_command_line,
        rows_in_table=table.num_rows,
    )
