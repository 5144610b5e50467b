"""`rcdiag.sweep`: every estimator over its thresholds; `rcdiag.emit`: what a trainer calls one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from rcdiag.api.usecase import Steps, usecase
from rcdiag.errors import RcdiagError
from rcdiag.results import SweepResult
from rcdiag.results.sweep import Recommendation
from rcdiag.trainers import emit as writers
from rcdiag.usecases.score import check_pair
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.run import sweep as measure
from rcdiag.usecases.tables import Source, name_of, open_table


@usecase
def sweep(
    source: Source,
    *,
    behavior: str = "rollout",
    target: str = "old",
    thresholds: int = 60,
    columns: Mapping[str, str] | None = None,
    trainer: str = "verl",
    seed: int = 0,
) -> Steps[SweepResult]:
    """Try every estimator over its thresholds in one pass, and recommend one, or none.

    Args:
        source: a trajectory table: a parquet file, a directory, a glob, or an open `Table`.
        behavior: the policy that sampled the tokens.
        target: the policy that trains; log_ratio = target - behavior, in nats.
        thresholds: about how many settings of each family are tried; at least 2.
        columns: name that rcdiag knows -> name in the files.
        trainer: whose configuration is wanted; it changes no number.
        seed: seed of the bootstrap intervals.
    """
    if not 2 <= thresholds <= 100_000:
        raise RcdiagError(f"--thresholds {thresholds}: out of range", hint="from 2 to 100000")
    table = open_table(source, columns=columns)
    check_pair(table, behavior, target)
    yield (f"{name_of(source)}: {table.num_rows:,} sequences; would sweep {behavior} -> {target}")
    return measure(
        table,
        behavior=behavior,
        target=target,
        seed=seed,
        thresholds=thresholds,
        trainer=trainer,
    )


def emit(result: SweepResult | None, trainer: str, candidate: str | None = None) -> str:
    """Write a correction as the configuration of a trainer, ready to paste.

    It is the one that the sweep recommends; where it recommends none, the configuration switches
    the correction off. `candidate` is another one of the sweep to write instead; without a result
    it is written alone. RcdiagError where the trainer has no settings for it.
    """
    if result is None:
        return _configuration(candidate or "none", trainer)
    advice = result.recommendation
    if candidate is not None:
        recommended = advice.choice or advice.answer
        comments = [f"# {candidate}, as asked for; recommended: {recommended}"]
        return "\n".join([*comments, _configuration(candidate, trainer)])
    name = advice.choice or "none"
    comments = [f"# {name}: {advice.answer}", *(f"# {reason}" for reason in advice.reasons)]
    try:
        return "\n".join([*comments, _configuration(name, trainer)])
    except RcdiagError as error:
        best = _best_that_can_be_written(advice, trainer)
        hint = f"--candidate {best} is the best that it has; {error.hint}" if best else error.hint
        raise RcdiagError(f"{name} is recommended: {error.message}", hint) from error


def _configuration(name: str, trainer: str) -> str:
    """The settings of one candidate of the sweep, in the words of a trainer."""
    if name not in CANDIDATES:
        raise RcdiagError(f"--candidate {name}: not known", hint=", ".join(CANDIDATES))
    return writers.emit(CANDIDATES[name].correction, trainer).text.rstrip() + "\n"


def _best_that_can_be_written(advice: Recommendation, trainer: str) -> str | None:
    """The candidate of the lowest rank that the trainer has settings for."""
    ranked = [each for each in advice.candidates if each.rank is not None]
    for each in sorted(ranked, key=lambda each: each.rank or 0):
        with contextlib.suppress(RcdiagError):
            _configuration(each.name, trainer)
            return each.name
    return None
