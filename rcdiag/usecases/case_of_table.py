"""Draw the sample of a table that its diagnosis looks at: whole rows, with all policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from rcdiag.diagnosis.case import Case, FlawedTokens, RowFacts, joined_cases
from rcdiag.errors import RcdiagError
from rcdiag.results.routing import Routing
from rcdiag.table.hashing import hashed_lists, mixed
from rcdiag.table.stream import read_trajectories
from rcdiag.table.table import Table
from rcdiag.table.trajectories import UNKNOWN_VERSION, Trajectories
from rcdiag.usecases.routing import routing_of

SAMPLER, TRAINER = "rollout", "old"
# A case holds at most twice this many response tokens; of a larger table it has blocks of rows.
TOKENS = 120_000
# Neighbouring rows stay together in blocks: if rows were exchanged, it was with a neighbour.
BLOCK = 16
# The initial share of a large table has at least this many blocks.
MANY_BLOCKS = 64


def pair_of_table(
    table: Table, sampler: str | None = None, trainer: str | None = None
) -> tuple[str, str | None]:
    """Return sampler and trainer: those named, else `rollout` and `old`, else what there is."""
    names = table.policies
    if not names:
        way_out = "dump them with the tokens; without `prompt_ids` no engine can compute them"
        if "prompt_ids" in table.columns:
            way_out = (
                "dump them with the tokens, or compute both: rcdiag score "
                f"{table.on_command_line} --model CKPT --policy rollout=vllm:bfloat16 "
                "--policy old=hf:float32 -o scored.parquet, then rcdiag diagnose scored.parquet"
            )
        raise RcdiagError(
            f"{table.name}: no column of log-probs",
            hint="a diagnosis needs `rollout_log_probs`, and shows more with `old_log_probs`: "
            + way_out,
        )
    by_preference = sorted(names, key=lambda name: (name != SAMPLER, name == TRAINER))
    first = sampler or by_preference[0]
    others = sorted((name for name in names if name != first), key=lambda name: name != TRAINER)
    return first, trainer or next(iter(others), None)


def read_case(
    table: Table,
    sampler: str,
    trainer: str | None,
    *,
    prompts: bool = False,
    tokens: int = TOKENS,
) -> Case:
    """Read whole rows of a table with all its policies; of a large table a sample of row blocks.

    Rows without log-probs of the pair are left out, and so are other policies that some rows lack.
    Of a row with more than 2 x `tokens` tokens the first 2 x `tokens` are taken. The choice of
    blocks depends only on their position, so that the same table gives the same case.
    """
    sample = CaseSample.of(table, sampler, trainer, prompts=prompts, tokens=tokens)
    read = prompts or "prompt_ids" in table.columns
    # An experiment routes the model by the sampler's recorded experts.
    experts = f"{sampler}_routed_experts"
    lists = [experts] if prompts and experts in table.columns else []
    for rows in read_trajectories(table, sample.policies, prompts=read, origin=True, lists=lists):
        sample.add(rows)
    return sample.case(table, None if trainer is None else routing_of(table, sampler, trainer))


@dataclass
class CaseSample:
    """The rows of a case, drawn while a table or a part of it is read.

    Samples of consecutive parts merge into the sample of all their rows, which depends only on the
    table: a block of rows is in the sample if the hash of its number is below `share`, and `share`
    is the largest power of 1/2 for which the sample has at most `most` tokens.
    """

    sampler: str
    trainer: str | None
    policies: list[str]  # whose log-probs the rows are read with
    prompts: bool  # keep the prompts too, not only their lengths and hashes
    most: int  # largest number of tokens
    share: float = 1.0  # of the blocks that are drawn
    parts: list[Case] = field(default_factory=list)
    # Policy -> kind -> the sampled tokens of all rows whose log-prob is NaN or infinite.
    not_numbers: dict[str, dict[str, FlawedTokens]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        table: Table,
        sampler: str,
        trainer: str | None,
        *,
        prompts: bool = False,
        tokens: int = TOKENS,
    ) -> CaseSample:
        """Begin the sample of a table."""
        nulls, pair = table.null_rows, (sampler, trainer)
        policies = [name for name in table.policies if name in pair or name not in nulls]
        most, share = 2 * tokens, 1.0
        # Start with a share that is still too large, but keeps the parts small.
        while (
            table.response_tokens * share > 8 * most
            and table.num_rows * share > MANY_BLOCKS * BLOCK
        ):
            share /= 2
        return cls(sampler, trainer, policies, prompts, most, share)

    def of_part(self) -> CaseSample:
        """Begin the sample of a part of the table."""
        return replace(self, parts=[], not_numbers={})

    def add(self, rows: Trajectories) -> None:
        """Add the next rows of the table, which have log-probs of `policies` and their origin."""
        part = _case(rows, self.policies, self.sampler, self.trainer)
        not_numbers = {policy: part.not_numbers_of(policy) for policy in part.log_probs}
        part = part.take(_in_sample(part.row, self.share)).heads(self.most)
        if part.prompt_ids is not None:
            facts = structs.replace(part.facts, prompt=hashed_lists(part.prompt_ids))
            kept = part.prompt_ids if self.prompts else None
            part = structs.replace(part, facts=facts, prompt_ids=kept)
        self.merge(replace(self, parts=[part], not_numbers=not_numbers))

    def merge(self, following: CaseSample) -> None:
        """Merge with the sample of the rows that follow."""
        for policy, by_kind in following.not_numbers.items():
            for kind, tokens in by_kind.items():
                known = self.not_numbers.setdefault(policy, {})
                known[kind] = known[kind].and_later(tokens) if kind in known else tokens
        share = min(self.share, following.share)
        following._draw(share)
        self._draw(share)
        self.parts += following.parts
        while sum(len(one.mask) for one in self.parts) > self.most and self.share > 2.0**-30:
            self._draw(self.share / 2)

    def case(self, table: Table, routing: Routing | None = None) -> Case:
        """Return the case of all rows so far; `routing` compares the experts of the pair."""
        if not self.parts:
            raise RcdiagError(
                f"{table.name}: no row has log-probs of all policies of the pair",
                hint="rows whose log-probs are null were not recorded: name two policies that some "
                "row has, or score one of them",
            )
        case = joined_cases(self.parts)
        return structs.replace(
            case,
            drawn="" if self.share == 1.0 else f" in the {len(case.lengths):,} rows diagnosed",
            not_numbers=self.not_numbers,
            rerouting=None if routing is None else routing.rerouting,
            metadata=table.metadata,
            source=table.as_given.on_command_line,
        )

    def _draw(self, share: float) -> None:
        """Reduce the sample to a smaller share of the blocks."""
        if share < self.share:
            self.share = share
            self.parts = [one.take(_in_sample(one.row, share)) for one in self.parts]


def _in_sample(row: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Flag the rows whose block is in the sample of a share, [rows]."""
    if share >= 1.0:
        return np.ones(len(row), np.bool_)
    return mixed((row // BLOCK).astype(np.uint64)) < np.uint64(share * 2.0**64)


def _case(rows: Trajectories, policies: Sequence[str], sampler: str, trainer: str | None) -> Case:
    """Make a case of some rows, with the log-probs of some policies and the prompts."""
    version = rows.policy_version
    if version is not None and (version == UNKNOWN_VERSION).any():
        version = None
    kept = rows.token_lists.get(f"{sampler}_kept_ids")
    return Case(
        sampler=sampler,
        trainer=trainer,
        row=rows.row,
        lengths=rows.response_ids.lengths,
        token_id=rows.response_ids.values,
        mask=rows.mask,
        log_probs={name: rows.log_probs[name] for name in policies},
        entropy={name: rows.entropy[name] for name in policies if name in rows.entropy},
        kept_size=None if kept is None else kept.lengths,
        prompt_ids=rows.prompt_ids,
        experts=rows.token_lists.get(f"{sampler}_routed_experts"),
        facts=RowFacts(
            step=rows.step,
            group=rows.group,
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
    )
