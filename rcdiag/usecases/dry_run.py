"""Describe what a command would run: rows, tokens, parts, engines, time and disk."""

from __future__ import annotations

import math
import os
import shutil
from typing import TYPE_CHECKING, Any

from rcdiag.engines import BACKENDS
from rcdiag.engines.scored_by import RATES, rate_of
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, setting
from rcdiag.formats import duration, plural
from rcdiag.runners import Runner
from rcdiag.table.destination import Destination
from rcdiag.table.table import Table

if TYPE_CHECKING:
    from rcdiag.engines.scoring import ScoringPlan

# Bytes of the scores of a response token; for `top_k` of each of its top tokens.
BYTES = {"log-probs": 4, "entropy": 4, "top_k": 8}


def check_rate(rate: float | None) -> None:
    """Refuse a rate that no engine has."""
    if rate is not None and not (0 < rate < math.inf):
        raise RcdiagError(
            f"{setting('rate', rate)}: not a number of tokens per second",
            hint="give the tokens that one engine scores per second, for example 12000",
        )


def description(
    table: Table,
    plan: ScoringPlan | None,
    output: Destination | None,
    runner: Runner | None = None,
    rate: float | None = None,
) -> str:
    """Describe a dry run: rows, tokens, policies, where they would run and be written.

    `rate` is the user's estimate of the tokens that one engine scores per second.
    """
    lines = [f"{table.title}: {table.num_rows:,} sequences in {plural(len(table.sources), 'file')}"]
    if plan is None:
        lines.append(f"would compute from recorded policies: {', '.join(table.policies)}")
        lines.append(f"  {pass_over(table, runner)}")
        return "\n".join(lines)
    survey = plan.survey
    lines.append(
        f"{survey.tokens:,} tokens to run, {survey.sampled_tokens:,} of them sampled; "
        f"longest sequence {survey.lengths.max():,}; {plural(len(plan.ranges), 'part')}"
    )
    for spec in plan.specs:
        options = ", ".join(f"{key}={value}" for key, value in spec.options.items())
        policy = f"{spec.backend} {spec.dtype} {spec.model} {options}".rstrip()
        lines.append(f"would score `{spec.name}`: {policy}")
        if runner is not None:
            abouts = plan.provenance(spec)
            if left := len(plan.ranges) - len(abouts):
                lines.append(f"  {runner.plan(spec, left)}")
            if layout := BACKENDS[spec.backend].layout(spec):
                lines.append(f"  {layout}")
            lines.append(f"  {_time_of(plan, spec, abouts, runner, rate)}")
    lines.append(_disk(plan, output))
    return "\n".join(lines)


def pass_over(table: Table, runner: Runner | None) -> str:
    """Say what a pass over recorded columns reads, and where it runs."""
    tokens = table.response_tokens
    where = "in this process" if runner is None else runner.place(tokens)
    return f"{tokens:,} response tokens, {where}"


def _time_of(
    plan: ScoringPlan,
    spec: PolicySpec,
    abouts: dict[str, dict[str, Any]],
    runner: Runner,
    rate: float | None,
) -> str:
    """Say how long scoring a policy would take, and where the rate used for it comes from.

    `abouts` has the provenance of the parts that are on disk.
    """
    names = plan.part_names()
    left = [rows for name, rows in names.items() if name not in abouts]
    tokens = sum(int(plan.survey.lengths[first:end].sum()) for first, end in left)
    done = f"{len(abouts):,} of {plural(len(names), 'part')} are on disk, " if abouts else ""
    if not left:
        return f"{done}nothing is left to score"
    known, source = _rate(plan, spec, list(abouts.values()), rate)
    todo = f"{done}{tokens:,} tokens left"
    if known is None:
        return (
            f"{todo}: the time is unknown until the first part is done; "
            f"{setting('rate', 'TOKENS')} says how many one engine scores per second"
        )
    engines = min(runner.engines(spec), len(left))
    # Engines take parts in rounds; some are idle in the last round.
    rounds = math.ceil(len(left) / engines)
    seconds = rounds * tokens / len(left) / known
    return (
        f"{todo}: about {duration(seconds)} at {known:,.0f} tokens per second and engine "
        f"({source}), plus the time to load the model"
    )


def _rate(
    plan: ScoringPlan, spec: PolicySpec, abouts: list[dict[str, Any]], rate: float | None
) -> tuple[float | None, str]:
    """Return the tokens that one engine scores per second, and the source of this number."""
    if rate is not None:
        return rate, f"as {setting('rate')} says"
    if measured := rate_of(abouts):
        return measured, "measured in the parts that are on disk"
    scored_as = {key: value for key, value in spec.to_dict().items() if key != "name"}
    for name, facts in plan.dump.metadata.get("policies", {}).items():
        earlier = plan.dump.metadata.get(RATES, {}).get(name)
        alike = all(facts.get(key) == value for key, value in scored_as.items())
        if alike and isinstance(earlier, (int, float)) and 0 < earlier < math.inf:
            return float(earlier), f"measured when `{name}` of this table was scored"
    return None, ""


def _disk(plan: ScoringPlan, output: Destination | None) -> str:
    """Say what would be written, how large it may be, and what room there is."""
    if output is None:
        return "would keep no scores (no -o FILE)"
    of_token = 0  # bytes before compression
    for spec in plan.specs:
        top = spec.options.get("top_k", 0)
        of_token += BYTES["log-probs"] + BYTES["top_k"] * (top if isinstance(top, int) else 0)
        of_token += BYTES["entropy"] if spec.options.get("entropy") else 0
    scored = int(plan.survey.response_lengths.sum()) * of_token
    table = sum(path.stat().st_size for path in plan.dump.parquets)
    folder = next(one for one in output.path.absolute().parents if one.exists())
    free = shutil.disk_usage(folder).free if os.access(folder, os.R_OK) else None
    room = "" if free is None else f"; {_size(free)} are free there"
    place = f"{output}, in {output.path} first" if output.url else str(output)
    return (
        f"would write {place}: up to {_size(table + scored)}, and beside it up to "
        f"{_size(scored)} of finished parts until it is complete{room}"
    )


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
