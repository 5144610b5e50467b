"""These checks ask whether the table can be judged: broken values, few rows, rows left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rcdiag.diagnosis.checks.check import Check, CheckInput, Observation
from rcdiag.errors import mapping_setting, setting
from rcdiag.results.guide import PROPOSAL
from rcdiag.statistics.extremes import Places
from rcdiag.statistics.intervals import FEW_CLUSTERS
from rcdiag.statistics.metrics import METRICS

if TYPE_CHECKING:
    from rcdiag.results import CompareResult, ScoreResult

# So many rows are named in the sentence of a finding; its evidence names more.
PLACES_SHOWN = 3


def _at_places(places: Places, are: str, given: CheckInput) -> Iterator[Observation]:
    """Yield one finding per policy, with the first rows and what they do to the numbers."""
    for policy, count in places.tokens.items():
        evidence: dict[str, Any] = {
            "policy": policy,
            "tokens": count,
            "rows": places.rows[policy],
            "first_rows": places.first_rows[policy],
        }
        rows = f"{places.rows[policy]} rows"
        if given.where is not None:
            evidence["first_places"] = [given.where(row) for row in places.first_rows[policy]]
            more = "; ..." if places.rows[policy] > PLACES_SHOWN else ""
            rows += f" ({'; '.join(evidence['first_places'][:PLACES_SHOWN])}{more})"
        yield Observation(
            message=f"{count} unmasked log-probs of `{policy}` in {rows} are {are}; "
            f"{_consequence(given)}",
            evidence=evidence,
        )


def _consequence(given: CheckInput) -> str:
    """Say what log-probs that are no numbers do to the numbers of the result."""
    if given.result.kind in ("score", "compare"):
        if 2 * given.result.rows_left_out > given.result.num_sequences:
            whose = "" if given.result.kind == "score" else " of its pairs"
            return f"fewer than half of the rows remain without them: `mismatch`{whose} is null"
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
    says="Unmasked log-probs are NaN or infinite. Rejection in trainers drops NaN without a word, "
    f"while their metrics become NaN. {_LEFT_OUT}",
    fix="look at these rows; a sampler writes NaN or -inf after an overflow or for a token outside "
    "its kept set. Mask them only if the trainer does",
    example="a sampler writes -inf for a token outside its kept set",
    see=("positive-log-probs",),
    find=lambda given: _at_places(given.non_finite.not_finite, "NaN or infinite", given),
)

POSITIVE_LOG_PROBS = Check(
    slug="positive-log-probs",
    severity="error",
    stages=_STAGES,
    asks="Is every unmasked log-prob 0 or below?",
    says=f"Unmasked log-probs are positive, beyond what rounding makes of 0. {_LEFT_OUT}",
    fix="look at these rows: positive values are probabilities, negated log-probs, entropies or "
    "logits",
    example="0.37 for a token of probability 0.37, whose log-prob is -0.99",
    see=("non-finite-log-probs",),
    find=lambda given: _at_places(given.non_finite.positive, "positive", given),
)


def _not_observable(given: CheckInput) -> Iterator[Observation]:
    """Report the rows that lack log-probs of a policy, with the first of them."""
    lacking = given.unobserved
    if not lacking.rows:
        return
    parts = []
    evidence: dict[str, Any] = {"rows": lacking.rows, "first_rows": dict(lacking.first_rows)}
    for policy, count in lacking.by_policy.items():
        first = lacking.first_rows[policy][0]
        place = f"row {first}" if given.where is None else given.where(first)
        parts.append(f"{count:,} lack `{policy}_log_probs` (the first: {place})")
    yield Observation(
        message=f"{lacking.rows:,} rows are not observable: {', '.join(parts)}; all numbers are "
        "of the other rows",
        evidence=evidence,
    )


ROWS_NOT_OBSERVABLE = Check(
    slug="rows-not-observable",
    severity="warning",
    stages=("score", "compare", "sweep", "replay"),
    asks="Has every row log-probs of all policies that are compared?",
    says="The log-probs of some rows are null: they were not recorded, or a dump that was joined "
    "has no such row. Nothing is known of these rows, so all numbers are computed without them, "
    "and hold for the table only as far as the rows that are left are like those that are not.",
    fix="record both policies on every row, or look at which rows lack one: rows that were dropped "
    "for their length or reward make the others a selection",
    example="a trainer that skips groups of equal rewards records no log-probs of them",
    see=("non-finite-log-probs",),
    find=_not_observable,
)


def _temperature_unknown(given: CheckInput) -> Iterator[Observation]:
    result: ScoreResult = given.result
    key = "rows_scored_at_temperature_1_because_unknown"
    rows = {name: policy[key] for name, policy in result.scoring.items() if policy.get(key)}
    if rows:
        yield Observation(
            message=f"{max(rows.values())} rows state no temperature; they were scored at 1",
            evidence=rows,
        )


TEMPERATURE_UNKNOWN = Check(
    slug="temperature-unknown",
    severity="note",
    stages=("score",),
    asks="Is the temperature of every row that was scored known?",
    says="Rows without a temperature were scored at 1; at another temperature these are other "
    "policies.",
    fix="add a `temperature` column: at another temperature these are other policies",
    example="add a `temperature` column to the table",
    find=_temperature_unknown,
)


def _without_tokens(given: CheckInput) -> Iterator[Observation]:
    count = given.result.empty_sequences
    if count:
        yield Observation(
            message=f"{count} sequences have no unmasked token and are left out",
            evidence={"sequences": count},
        )


SEQUENCES_WITHOUT_TOKENS = Check(
    slug="sequences-without-tokens",
    severity="note",
    stages=("score",),
    asks="Has every row a token that counts?",
    says="Rows have no unmasked token. They are left out here; trainers count them in means over "
    "rows.",
    fix="padding rows are harmless here; trainers count them in some of their means",
    example="one such row in four lowers rollout_is_seq_mean by a quarter",
    see=("rollout_corr/rollout_is_seq_mean",),
    find=_without_tokens,
)


def _few_clusters(given: CheckInput) -> Iterator[Observation]:
    """Report too few clusters for honest intervals."""
    result = given.result
    count = result.num_groups if result.kind == "replay" else result.num_clusters
    if count >= FEW_CLUSTERS:
        return
    what = f"{count} prompt groups (or sequences without a group) are"
    replayed = result.kind == "replay" and result.step is not None
    where = f" in step {result.step}" if replayed else ""
    yield Observation(
        message=f"{what if count != 1 else 'one prompt group is'} too few for good intervals"
        + where,
        evidence={"clusters": count},
    )


FEW_PROMPT_GROUPS = Check(
    slug="few-clusters",
    severity="note",
    stages=("score", "compare", "sweep", "replay"),
    asks="Are there enough prompt groups for intervals?",
    says=f"There are fewer than {FEW_CLUSTERS} prompt groups (or sequences without a group): "
    "intervals are made from them, and so few make no good ones. One alone makes none: levels are "
    "unknown then.",
    fix="score more prompts; tokens of one prompt depend on each other and count little",
    example="tokens of one prompt depend on each other: score more prompts, not more samples",
    see=("unknown", "low"),
    source=PROPOSAL,
    find=_few_clusters,
)


def _read_under_other_names(given: CheckInput) -> Iterator[Observation]:
    naming = given.naming
    if naming.taken:
        first = next(iter(naming.taken))
        yield Observation(
            message=f"columns are read by their names: {naming.sentence()}",
            evidence={"columns": dict(naming.taken)},
            fix="where one means something else, name the right column, or none: "
            f"{mapping_setting('columns', {first: 'OTHER'}, '--column')}, "
            f"{mapping_setting('columns', {first: ''}, '--column')}",
        )


COLUMNS_READ_BY_NAME = Check(
    slug="columns-read-by-name",
    severity="note",
    stages=("score", "compare", "diagnose", "sweep", "replay"),
    asks="Are columns read that have another name in the table?",
    says="The table lacks columns and has them under names that trainers or engines give to them. "
    "They are read, because no second column has such a name, their types are those of the "
    "columns, and in the first rows their lists are as long as the response.",
    fix=f"where one means something else, name the right column: "
    f"{setting('columns', option='--column')}; an empty name reads none",
    example="`inference_logprobs` of prime-rl is read as `rollout_log_probs`",
    see=("column-not-read",),
    find=_read_under_other_names,
)


def _padded(given: CheckInput) -> Iterator[Observation]:
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


PADDED_ROWS = Check(
    slug="padded-rows",
    severity="note",
    stages=("score", "compare", "diagnose", "sweep", "replay"),
    asks="Are rows padded to one length?",
    says="Rows are filled up to one length with one token, and log-probs of exactly 0. A mask of "
    "the table leaves the padding out of every number. Without one such a table is refused: the "
    "padding would count as tokens without a mismatch.",
    fix="none is needed; lists that are cut to the response's length take less space and time",
    example="tensors of a trainer, written row by row with their `completion_mask`",
    find=_padded,
)


def _not_read(given: CheckInput) -> Iterator[Observation]:
    for name, column in given.unread.items():
        doubts = given.naming.doubts.get(name, ())
        why = next((f": {doubt.why}" for doubt in doubts if doubt.column == column), "")
        yield Observation(
            message=f"column `{column}` may be `{name}`, which the table lacks, and is not read"
            + why,
            evidence={"column": column, "may_be": name},
            fix=f"if it is: {mapping_setting('columns', {name: column}, '--column')}",
        )


COLUMN_NOT_READ = Check(
    slug="column-not-read",
    severity="note",
    stages=("score", "compare", "sweep", "replay"),
    asks="Has a column that is missing another name in the table?",
    says="A column has the name that other programs give to a column that rcdiag reads and does "
    "not find. Without prompt groups intervals are made from single sequences, which are taken for "
    "independent; without a mask every token is taken for one that the policy sampled.",
    fix=f"name the column with {setting('columns', option='--column')}, if it is what its name "
    "says",
    example="rcdiag score dump.parquet --column group_id=group",
    find=_not_read,
)


def _left_out_of_join(given: CheckInput) -> Iterator[Observation]:
    result: CompareResult = given.result
    report = result.joined
    if report is None or not (report.tokens_differ or any(report.missing_rows.values())):
        return
    lacking = "; ".join(
        f"{table} lacks {count:,}" for table, count in report.missing_rows.items() if count
    )
    differ = f"{report.tokens_differ:,} have other tokens" if report.tokens_differ else ""
    reasons = "; ".join(reason for reason in (lacking, differ) if reason)
    yield Observation(
        message=f"{report.common_samples:,} samples are in all tables with the same tokens; "
        f"left out: {reasons} (first: {', '.join(report.left_out)})",
        evidence={
            "missing": report.missing_rows,
            "tokens_differ": report.tokens_differ,
            "named": report.left_out,
        },
    )


ROWS_LEFT_OUT_OF_JOIN = Check(
    slug="rows-left-out-of-the-join",
    severity="warning",
    stages=("compare",),
    asks="Have all tables the same samples with the same tokens?",
    says="Several tables were compared, and samples that one of them lacks or has with other "
    "tokens are left out: the finding counts and names them.",
    fix="score the same dump in all runs; samples with other tokens are other samples",
    example="a run that was scored on a part of the dump",
    find=_left_out_of_join,
)


def _below_least(given: CheckInput) -> Iterator[Observation]:
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
            message=f"{numbers}: below 0, which in truth it never is. It takes the mean ratio for "
            "1, which the sampled ratios do not have, by chance, because rare large ones were not "
            "met, or because another policy sampled",
            evidence=values,
        )


DIVERGENCE_BELOW_ZERO = Check(
    slug="divergence-below-zero",
    severity="note",
    stages=("score",),
    asks="Is every estimate of a divergence one that a divergence can have?",
    says="The estimate of a divergence that is never negative came out below 0, so that it says "
    "nothing but that the divergence is small beside its error: its level is unknown and it has no "
    "interval. Such an estimate takes the mean ratio for 1, and the sampled ratios have another, "
    "by chance, because rare large ratios were not met, or because another policy sampled.",
    fix="read the self-normalised number, which is never negative, with k-hat beside it, or k2_kl",
    example="chi2_seq -0.009 where ratio_mean_seq is 0.9; chi2_seq_self_normalised is 0.22",
    see=("chi2_seq", "chi2_seq_self_normalised", "khat_seq"),
    find=_below_least,
)


def _no_experiment(given: CheckInput) -> Iterator[Observation]:
    result = given.result
    if result.kind == "diagnose" and result.trainer_model and not result.rows_read:
        yield Observation(
            message=f"no experiment was run with {result.trainer_model}: no row could be scored, "
            "for which it needs `prompt_ids` and a log-prob that is a number; the table alone was "
            "judged",
            evidence={"model": result.trainer_model, "rows_read": 0},
        )


NO_EXPERIMENT = Check(
    slug="no-experiment",
    severity="warning",
    stages=("diagnose",),
    asks="Could the checkpoint be asked?",
    says="A checkpoint was given and no row could be scored with it. The verdict is that of the "
    "table alone.",
    fix="record `prompt_ids`, or join the dump that has them: give both dumps",
    example="a table of responses alone, without the tokens before them",
    find=_no_experiment,
)

TABLE_CHECKS = (
    NO_EXPERIMENT,
    NON_FINITE_LOG_PROBS,
    POSITIVE_LOG_PROBS,
    TEMPERATURE_UNKNOWN,
    ROWS_NOT_OBSERVABLE,
    SEQUENCES_WITHOUT_TOKENS,
    ROWS_LEFT_OUT_OF_JOIN,
    COLUMNS_READ_BY_NAME,
    PADDED_ROWS,
    COLUMN_NOT_READ,
    DIVERGENCE_BELOW_ZERO,
)
