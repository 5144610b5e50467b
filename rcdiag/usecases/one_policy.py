"""A table with one policy has a diagnosis and its counts; all that needs a second one is empty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.checks import CheckInput, findings
from rcdiag.diagnosis.guides import without_numbers
from rcdiag.errors import RcdiagError
from rcdiag.results import ScoreResult
from rcdiag.statistics.extremes import NonFinite, RowCount
from rcdiag.statistics.merging import merge
from rcdiag.table.survey import unobserved
from rcdiag.table.table import Table
from rcdiag.usecases.chosen_pair import BEHAVIOR, TARGET
from rcdiag.usecases.diagnosed import diagnosis_of_table, sample_in_pass
from rcdiag.usecases.passes import Walk, no_tokens, token_batches
from rcdiag.usecases.provenance import provenance


def only_policy(
    table: Table, named: Sequence[str | None] = (), scored: Sequence[str] = ()
) -> str | None:
    """Return the policy of a table that has one, where nobody asks for another.

    None where the user has `named` a policy that is missing, where some are to be `scored`, and
    where a column of the table may hold the log-probs that are missing under another name.
    """
    if len(table.policies) != 1 or scored:
        return None
    (only,) = table.policies
    if any(name not in (None, only) for name in named) or None not in (*named, None):
        return None
    lacking = [f"{name}_log_probs" for name in (BEHAVIOR, TARGET) if name != only]
    return None if table.may_mean(*lacking) else only


def refuse_one(table: Table, source: str, command: str, named: Sequence[str | None] = ()) -> None:
    """Refuse a table of one policy for a command that compares two, and say how to score another.

    `source` is the table as the user calls it, `named` are the policies that the user asks for.
    """
    if only := only_policy(table, named):
        raise RcdiagError(
            f"{source}: the table has one policy, `{only}`; {command} needs two",
            hint=f"rcdiag score {source} --model CKPT -o scored.parquet scores the other, "
            f"then rcdiag {command} scored.parquet",
        )


def score_of_one(
    dump: Table, policy: str, *, seed: int = 0, origin: Table | None = None
) -> ScoreResult:
    """Count the tokens of a table with one policy, and diagnose it.

    `origin` is the table that the user gave, where `dump` is made of it.
    """
    sample = sample_in_pass(dump, (policy,))
    parts: list[tuple[NonFinite, RowCount]] = []
    clusters = np.empty(0, np.uint64)
    for batch in token_batches(dump, Walk(policies=(policy,)), sample):
        parts.append((NonFinite.of(batch), RowCount.of(batch)))
        clusters = np.union1d(clusters, batch.cluster)
    non_finite, count = map(merge, zip(*parts, strict=True)) if parts else (NonFinite(), RowCount())
    if not count.sequences:
        raise no_tokens(dump, (policy,))
    about = dump.metadata.get("policies", {})
    lacking = unobserved(dump, (policy,))
    values = without_numbers()
    result = ScoreResult(
        provenance=provenance(origin or dump, seed),
        behavior=policy,
        target="",
        num_sequences=count.sequences,
        num_tokens=count.tokens,
        empty_sequences=dump.num_rows - lacking.rows - count.sequences,
        num_clusters=len(clusters),
        scoring={policy: about[policy]} if policy in about else {},
        mismatch=values,
        rows_left_out=count.left_out,
        diagnosis=diagnosis_of_table(dump, origin, sample),
    )
    given = CheckInput(
        result=result,
        non_finite=non_finite,
        unobserved=lacking,
        values=values,
        where=(origin or dump).where,
        unread=(origin or dump).unread,
        naming=(origin or dump).naming,
    )
    return replace(result, findings=findings(given))
