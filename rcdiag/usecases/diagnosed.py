"""Every command carries the same diagnosis of a table, made here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rcdiag.diagnosis.judge import diagnose
from rcdiag.results import Diagnosis
from rcdiag.statistics.extremes import RowCount
from rcdiag.table.table import Table
from rcdiag.usecases.case_of_table import CaseRows, pair_of_table, read_case


def diagnosis_of_table(
    table: Table, origin: Table | None = None, rows: CaseRows | None = None
) -> Diagnosis:
    """Judge sampler and trainer of a table, whatever pair a command compares.

    `origin` is the table that the user gave, where `table` is its scored copy: commands to copy
    name it. `rows` hold the rows of the table, where they were read already.
    """
    case = read_case(table, *pair_of_table(table)) if rows is None else rows.case()
    return diagnose(replace(case, source=(origin or table).on_command_line))


def rows_to_judge(table: Table, policies: Sequence[str]) -> CaseRows | None:
    """Return what takes in the rows of a pass over some policies, so that it is the only one.

    None where the diagnosis reads other policies too.
    """
    rows = CaseRows(table, *pair_of_table(table))
    return rows if set(rows.policies) == set(policies) else None


def recorded_constants(count: RowCount, table: Table) -> set[str]:
    """Return the policies whose recorded column is one number: what was stored is no log-prob.

    An engine may score so: a uniform law gives every token the same.
    """
    return count.constant - scored_policies(table)


def scored_policies(table: Table) -> set[str]:
    """Return the policies that an engine scored from the stored tokens, as their metadata tell.

    What recorded a column may name its backend; the options of a run are noted by scoring alone.
    """
    about = table.metadata.get("policies", {})
    return {name for name, facts in about.items() if {"backend", "options"} <= facts.keys()}
