"""The diagnosis of a table, the same one for every command."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from rcdiag.diagnosis.checks import CheckInput, findings
from rcdiag.diagnosis.judge import diagnose
from rcdiag.results import Diagnosis, Result
from rcdiag.results.routing import Routing
from rcdiag.runners import Runner
from rcdiag.statistics.extremes import RowCount
from rcdiag.table.table import Table
from rcdiag.usecases.case_of_table import SAMPLER, CaseSample, pair_of_table, read_case
from rcdiag.usecases.passes import Walk, no_tokens, read_table
from rcdiag.usecases.routing import routing_of

R = TypeVar("R", bound=Result)


class RowsRead(Protocol):
    """The state of some rows that a pass over a table computes."""

    @property
    def empty(self) -> bool:
        """Tell whether none of the rows has a sampled token."""
        ...


S = TypeVar("S", bound=RowsRead)


def read_and_diagnose(
    dump: Table, walk: Walk[S], runner: Runner | None = None, routing: Routing | None = None
) -> tuple[S, Diagnosis]:
    """Read a table in one pass; return the state of its rows, and its diagnosis.

    `routing` compares the experts of the first two policies of the walk, if that is known already.

    Raises:
        RcdiagError: no row has a sampled token with log-probs of all policies of the walk.
    """
    sampler, trainer = pair_of_table(dump)
    sample = CaseSample.of(dump, sampler, trainer)
    # A pass over other policies than the diagnosis needs does not draw its rows.
    in_pass = set(sample.policies) == set(walk.policies)
    state = read_table(dump, walk, runner, sample if in_pass else None)
    if state is None or state.empty:
        raise no_tokens(dump, walk.policies)
    if not in_pass:
        return state, diagnose(read_case(dump, sampler, trainer))
    known = routing is not None and walk.policies[:2] == (sampler, trainer)
    if trainer is not None and not known:
        routing = routing_of(dump, sampler, trainer)
    return state, diagnose(sample.case(dump, routing))


def diagnosis_of_table(table: Table) -> Diagnosis:
    """Diagnose sampler and trainer of a table, whichever policies a command replays."""
    return diagnose(read_case(table, *pair_of_table(table)))


def with_findings(result: R, dump: Table, **known: Any) -> R:
    """Return a result with the findings of its checks; `known` are fields of `CheckInput`."""
    given = CheckInput(result=result, table=dump.as_given, **known)
    return replace(result, findings=findings(given))


def recorded_constants(count: RowCount, table: Table) -> set[str]:
    """Return the policies whose recorded column is constant, so that it holds no log-probs.

    A policy that an engine scored may be constant: a uniform one gives all tokens one value.
    """
    return count.constant - scored_policies(table)


def sampler_of(table: Table, behavior: str | None = None) -> str | None:
    """Return the policy that sampled a table's tokens; None where no column is known to be its.

    It is `rollout`. In a table without that column it is the `behavior` that the user names, but
    never a policy that an engine scored from the stored tokens.
    """
    if SAMPLER in table.policies:
        return SAMPLER
    recorded = set(table.policies) - scored_policies(table)
    return behavior if behavior in recorded else None


def scored_policies(table: Table) -> set[str]:
    """Return the policies that an engine scored from the stored tokens, by the table's metadata.

    A recorder may name a backend too, but only scoring also stores the options of a run.
    """
    about = table.metadata.get("policies", {})
    return {name for name, facts in about.items() if {"backend", "options"} <= facts.keys()}
