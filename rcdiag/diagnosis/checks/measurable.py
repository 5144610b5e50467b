"""Checks of the table itself: invalid values, few rows, rows left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.diagnosis.checks.check import Check, CheckInput, Observation, check
from rcdiag.diagnosis.thresholds import SHOWN
from rcdiag.errors import mapping_setting, setting
from rcdiag.formats import plural
from rcdiag.results.guide import PROPOSAL
from rcdiag.statistics.extremes import Places
from rcdiag.statistics.intervals import FEW_CLUSTERS
from rcdiag.statistics.metrics import METRICS

if TYPE_CHECKING:
    from rcdiag.results import CompareResult, ScoreResult


def _at_places(
    places: Places, given: CheckInput, are: Callable[[CheckInput, str], str]
) -> Iterator[Observation]:
    """Yield one finding per policy, with the first rows and the effect on the numbers.

    `are` says what values a policy has at these places.
    """
    for policy, count in places.tokens.items():
        evidence: dict[str, Any] = {
            "policy": policy,
            "tokens": count,
            "rows": places.rows[policy],
            "first_rows": places.first_rows[policy],
        }
        rows = plural(places.rows[policy], "row")
        if given.table is not None:
            evidence["first_places"] = [given.where(row) for row in places.first_rows[policy]]
            more = "; ..." if places.rows[policy] > SHOWN else ""
            rows += f" ({'; '.join(evidence['first_places'][:SHOWN])}{more})"
        yield Observation(
            message=f"{plural(count, 'unmasked log-prob')} of `{policy}` "
            f"{'is' if count == 1 else 'are'} {are(given, policy)}, in {rows}; "
            f"{_consequence(given)}",
            evidence=evidence,
        )


def _not_finite(given: CheckInput, policy: str) -> str:
    """Say of which kinds the non-finite values of a policy are."""
    count = given.non_finite.not_finite.tokens[policy]
    nan = given.non_finite.nan.tokens.get(policy, 0)
    if nan in (0, count):
        return "NaN" if nan else "infinite or below -1e12"
    return f"NaN, infinite or below -1e12, {nan:,} of them NaN"


def _consequence(given: CheckInput) -> str:
    """Say how the result treats the rows with invalid log-probs."""
    if given.result.kind in ("score", "compare"):
        if 2 * given.result.rows_left_out > given.result.num_sequences:
            whose = "" if given.result.kind == "score" else " of its pairs"
            return f"`mismatch`{whose} is null, as fewer than half of the rows are without them"
        if given.result.rows_left_out:
            return "`mismatch` is computed without these rows"
    touched = [
        name
        for name, value in given.values.items()
        if value.value is not None and not np.isfinite(value.value)
    ]
    return f"touched metrics: {', '.join(touched) or 'none'}"


_STAGES = ("score", "compare", "sweep", "replay")
_LEFT_OUT = (
    "`mismatch` is computed without the rows that hold them, and is null where fewer than half of "
    "the rows remain; `corrections` stays as the trainer would log it."
)

NON_FINITE_LOG_PROBS = Check(
    slug="non-finite-log-probs",
    severity="error",
    stages=_STAGES,
    asks="Is every unmasked log-prob a finite number?",
    says="Unmasked log-probs are NaN, infinite or below -1e12. Rejection in trainers silently "
    f"drops NaN, while their metrics become NaN. {_LEFT_OUT}",
    fix="mask them where a tool wrote the tokens, and drop the other rows; there NaN or -inf come "
    "from an overflow or a token outside the kept set",
    example="a sampler writes -inf for a token outside its kept set",
    see=("positive-log-probs",),
    find=lambda given: _at_places(given.non_finite.not_finite, given, _not_finite),
)

POSITIVE_LOG_PROBS = Check(
    slug="positive-log-probs",
    severity="error",
    stages=_STAGES,
    asks="Is every unmasked log-prob 0 or below?",
    says=f"Unmasked log-probs are positive by more than the rounding of 0 explains. {_LEFT_OUT}",
    fix="store log-probs; positive values are probabilities, negated log-probs, entropies or "
    "logits",
    example="0.37 for a token of probability 0.37, whose log-prob is -0.99",
    see=("non-finite-log-probs",),
    find=lambda given: _at_places(given.non_finite.positive, given, lambda *_: "positive"),
)


@check(
    severity="warning",
    stages=("score", "compare", "sweep", "replay"),
    asks="Does every row have log-probs of all compared policies?",
    says="The log-probs of some rows are null: they were not recorded, or a joined dump does not "
    "have the row. All numbers are computed without these rows, and hold for the whole table only "
    "if the rows are missing at random.",
    fix="record both policies on every row, or check which rows are missing: rows dropped for "
    "their length or reward bias the rest",
    example="a trainer that skips groups of equal rewards records no log-probs for them",
    see=("non-finite-log-probs",),
)
def rows_not_observable(given: CheckInput) -> Iterator[Observation]:
    """Report the rows without log-probs of some policy, and the first such row."""
    lacking = given.unobserved
    if not lacking.rows:
        return
    parts = []
    evidence: dict[str, Any] = {"rows": lacking.rows, "first_rows": dict(lacking.first_rows)}
    for policy, count in lacking.by_policy.items():
        first = given.where(lacking.first_rows[policy][0])
        parts.append(f"{count:,} without `{policy}_log_probs` (first: {first})")
    yield Observation(
        message=f"{plural(lacking.rows, 'row')} left out: {', '.join(parts)}; all numbers are of "
        "the other rows",
        evidence=evidence,
    )


@check(
    severity="note",
    stages=("score",),
    asks="Is the temperature of every scored row known?",
    says="Rows without a temperature were scored at temperature 1. If they were sampled at "
    "another temperature, the scored log-probs are of another distribution.",
    fix="add a `temperature` column, or --given temperature=VALUE",
    example="add a `temperature` column to the table",
)
def temperature_unknown(given: CheckInput) -> Iterator[Observation]:
    result: ScoreResult = given.result
    key = "rows_scored_at_temperature_1_because_unknown"
    rows = {name: policy[key] for name, policy in result.scoring.items() if policy.get(key)}
    if rows:
        yield Observation(
            message=f"{plural(max(rows.values()), 'row')} without a temperature: scored at 1",
            evidence=rows,
        )


@check(
    severity="note",
    stages=("score",),
    asks="Does every row have an unmasked token?",
    says="Rows have no unmasked token. They are left out here; trainers count them in means over "
    "rows.",
    fix="nothing to do if they are padding rows; trainers count them in some means",
    example="one such row in four lowers rollout_is_seq_mean by a quarter",
    see=("rollout_corr/rollout_is_seq_mean",),
)
def sequences_without_tokens(given: CheckInput) -> Iterator[Observation]:
    count = given.result.empty_sequences
    if count:
        yield Observation(
            message=f"{plural(count, 'sequence')} without an unmasked token "
            f"{'is' if count == 1 else 'are'} left out",
            evidence={"sequences": count},
        )


@check(
    severity="note",
    stages=("score", "compare", "sweep", "replay"),
    asks="Are there enough prompt groups for confidence intervals?",
    says=f"There are fewer than {FEW_CLUSTERS} prompt groups (or sequences without a group), and "
    "confidence intervals are computed over groups. With one group there is no interval, and "
    "levels are unknown.",
    fix="score more prompts, not more samples: tokens from one prompt are correlated",
    example="8 samples of 5 prompts are 5 groups, not 40",
    see=("unknown", "low"),
    source=PROPOSAL,
)
def few_clusters(given: CheckInput) -> Iterator[Observation]:
    """Report too few clusters for honest intervals."""
    result = given.result
    count = result.num_groups if result.kind == "replay" else result.num_clusters
    if count >= FEW_CLUSTERS:
        return
    replayed = result.kind == "replay" and result.step is not None
    where = f" in step {result.step}" if replayed else ""
    yield Observation(
        message=f"{plural(count, 'prompt group')}{where}, too few for good intervals "
        f"(needs {FEW_CLUSTERS})",
        evidence={"clusters": count},
    )


@check(
    severity="note",
    stages=("score", "compare", "diagnose", "sweep", "replay"),
    asks="Are columns read under other names?",
    says="The table has columns under names that trainers or engines use. They are read because "
    "no second column has such a name, their types fit, and in the first rows their lists are as "
    "long as the response.",
    fix=f"if a column means something else, name the right one: "
    f"{setting('columns', option='--column')}; an empty name reads none",
    example="`inference_logprobs` of prime-rl is read as `rollout_log_probs`",
    see=("column-not-read",),
)
def columns_read_by_name(given: CheckInput) -> Iterator[Observation]:
    naming = given.naming
    if naming.taken:
        first = next(iter(naming.taken))
        # A screen shows what stands before the colon.
        own = ", ".join(f"`{name}`" for name in naming.taken.values())
        yield Observation(
            message=f"recognised {own} by name: {naming.sentence()}",
            evidence={"columns": dict(naming.taken)},
            fix="if one means something else, name the right one, or none: "
            f"{mapping_setting('columns', {first: 'OTHER'}, '--column')}, "
            f"{mapping_setting('columns', {first: ''}, '--column')}",
        )


@check(
    severity="note",
    stages=("score", "compare", "diagnose", "sweep", "replay"),
    asks="Are rows padded to one length?",
    says="Rows are filled up to one length with one token, and log-probs of exactly 0. A mask of "
    "the table leaves the padding out of every number. Without one such a table is refused: the "
    "padding would count as tokens without a mismatch.",
    fix="none is needed; lists that are cut to the response's length take less space and time",
    example="tensors of a trainer, written row by row with their `completion_mask`",
)
def padded_rows(given: CheckInput) -> Iterator[Observation]:
    padding = given.naming.padding
    if padding is not None:
        yield Observation(
            message=padding.sentence(),
            evidence={
                "width": padding.width,
                "token": padding.token,
                "mask": padding.mask,
                "rows_looked_at": padding.rows,
                "rows_padded": padding.padded,
            },
        )


@check(
    severity="note",
    stages=("score", "compare", "diagnose", "sweep", "replay"),
    asks="Is a missing column in the table under another name?",
    says="A column that rcdiag reads is missing, but the table has one under a name that "
    "other programs use for it, or one that is named like log-probs and holds objects, not "
    "numbers. Without prompt groups intervals are computed over single sequences, as if they were "
    "independent; without a mask every token counts as sampled.",
    fix=f"name the column with {setting('columns', option='--column')}, if it is what its name "
    "says",
    example="rcdiag score dump.parquet --column group_id=group",
)
def column_not_read(given: CheckInput) -> Iterator[Observation]:
    for name, column in given.unread.items():
        doubts = given.naming.doubts.get(name, ())
        why = next((f": {doubt.why}" for doubt in doubts if doubt.column == column), "")
        yield Observation(
            message=f"`{column}` may be the missing `{name}`{why}",
            evidence={"column": column, "may_be": name},
            fix=f"{mapping_setting('columns', {name: column}, '--column')} reads it",
        )
    if given.table is None or len(given.table.policies) > 1:
        return
    for column, held in given.table.unreadable_log_probs.items():
        yield Observation(
            message=f"column `{column}` is not read, as its lists hold {held} and not numbers",
            evidence={"column": column, "holds": held},
            fix="write one number for each response token, the log-prob of the sampled one, as "
            "list<float32>",
        )


@check(
    severity="warning",
    stages=("compare",),
    asks="Do all tables have the same samples with the same tokens?",
    says="Several tables were joined, and samples that are missing in one of them or have "
    "different tokens there are left out: the finding counts and names them.",
    fix="score the same dump in all runs",
    example="one run was scored on a part of the dump",
)
def rows_left_out_of_the_join(given: CheckInput) -> Iterator[Observation]:
    result: CompareResult = given.result
    report = result.joined
    if report is None or not (report.tokens_differ or any(report.missing_rows.values())):
        return
    lacking = "; ".join(
        f"{count:,} missing in {table}" for table, count in report.missing_rows.items() if count
    )
    differ = f"{report.tokens_differ:,} with different tokens" if report.tokens_differ else ""
    reasons = "; ".join(reason for reason in (lacking, differ) if reason)
    yield Observation(
        message=f"{plural(report.common_samples, 'sample')} joined; left out: {reasons} (first: "
        f"{', '.join(report.left_out)})",
        evidence={
            "missing": report.missing_rows,
            "tokens_differ": report.tokens_differ,
            "named": report.left_out,
        },
    )


@check(
    severity="note",
    stages=("score",),
    asks="Is every estimate of a divergence non-negative?",
    says="A divergence cannot be negative, but its estimate is: the divergence is small compared "
    "with its error, so its level is unknown and it has no interval. The estimator assumes a mean "
    "ratio of 1, which fails in this sample by chance, because rare large ratios are missing, or "
    "because another policy sampled.",
    fix="use k2_kl, or the self-normalised estimate with k-hat",
    example="chi2_seq -0.009 where ratio_mean_seq is 0.9; chi2_seq_self_normalised is 0.22",
    see=("chi2_seq", "chi2_seq_self_normalised", "khat_seq"),
)
def divergence_below_zero(given: CheckInput) -> Iterator[Observation]:
    values = {
        name: value.value
        for name, value in given.values.items()
        if value.value is not None
        and name in METRICS
        and (least := METRICS[name].least) is not None
        and value.value < least
    }
    if values:
        numbers = ", ".join(f"{name} is {value:.2g}" for name, value in values.items())
        yield Observation(
            message=f"{numbers}: negative, because the estimator assumes E[ratio] = 1, which fails "
            "in this sample (by chance, because rare large ratios are missing, or because another "
            "policy sampled)",
            evidence=values,
        )


@check(
    severity="warning",
    stages=("diagnose",),
    asks="Could the checkpoint score any row?",
    says="A checkpoint was given, but no row could be scored with it. The verdict is from the "
    "table only.",
    fix="record `prompt_ids`, or also pass the dump that has them",
    example="a table of responses without their prompts",
)
def no_experiment(given: CheckInput) -> Iterator[Observation]:
    result = given.result
    if result.kind == "diagnose" and result.trainer_model and not result.rows_read:
        yield Observation(
            message=f"no experiment was run with {result.trainer_model}: scoring a row needs "
            "`prompt_ids` and a finite log-prob, which no row has; the verdict is from the table "
            "only",
            evidence={"model": result.trainer_model, "rows_read": 0},
        )


TABLE_CHECKS = (
    no_experiment,
    NON_FINITE_LOG_PROBS,
    POSITIVE_LOG_PROBS,
    temperature_unknown,
    rows_not_observable,
    sequences_without_tokens,
    rows_left_out_of_the_join,
    columns_read_by_name,
    padded_rows,
    column_not_read,
    divergence_below_zero,
)
