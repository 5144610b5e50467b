"""Every command carries the same diagnosis of a table, made here and nowhere else."""

from __future__ import annotations

from dataclasses import replace

from rcdiag.diagnosis.judge import diagnose
from rcdiag.results import Diagnosis
from rcdiag.table.table import Table
from rcdiag.usecases.case import pair_of_table, read_case


def diagnosis_of_table(table: Table, origin: Table | None = None) -> Diagnosis:
    """Judge sampler and trainer of a table, whatever pair a command compares.

    `origin` is the table that the user gave, where `table` is its scored copy: commands to copy
    name it.
    """
    sampler, trainer = pair_of_table(table)
    case = read_case(table, sampler, trainer)
    return diagnose(replace(case, source=(origin or table).on_command_line))
