"""Use case `compare`: all pairs of the policies of one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from rcdiag.diagnosis.behavior_means import BehaviorMeans, behavior_means, judged_pair
from rcdiag.diagnosis.causes.catalogue import CAUSES
from rcdiag.diagnosis.guides import under_diagnosis, without_numbers
from rcdiag.diagnosis.triangulation import at_floor, triangulate
from rcdiag.results import (
    CompareResult,
    Diagnosis,
    JoinReport,
    MetricValue,
    NoiseFloor,
    PairResult,
    PolicySummary,
    Triangulation,
)
from rcdiag.runners import Runner
from rcdiag.statistics.moments import Moments, mean
from rcdiag.statistics.rounding import rounding_of
from rcdiag.statistics.suite import Suite
from rcdiag.statistics.weighted import WeightedSuite
from rcdiag.table.survey import unobserved
from rcdiag.table.table import Table
from rcdiag.usecases.chosen_pair import only_policy
from rcdiag.usecases.compare.ladder import (
    behind_the_best,
    choose,
    describe,
    is_nearest,
    ladder,
    ladder_order,
    repeat_of,
    role,
)
from rcdiag.usecases.compare.pairs import Comparison, Pair, read_comparison
from rcdiag.usecases.diagnosed import recorded_constants, sampler_of, with_findings
from rcdiag.usecases.provenance import provenance

NOTHING = MetricValue(value=None)


def compare(
    dump: Table,
    *,
    policies: Sequence[str] = (),
    behavior: str | None = None,
    target: str | None = None,
    seed: int = 0,
    joined: JoinReport | None = None,
    runner: Runner | None = None,
) -> CompareResult:
    """Compare every pair of policies, find those nearest to the sampler, and what each step adds.

    The ladder goes from `behavior` (`rollout`) to `target` (`old`); for who sampled see
    `sampler_of`.
    `policies` is their order from the sampler to the trainer; without it all are taken, in the
    order of engine and precision. `joined` says how `dump` was made, if of several tables. `runner`
    says where the pass over the table is done: in this process without one.
    """
    about = dump.metadata.get("policies", {})
    where = dump.as_given.name
    choose(dump.policies, [name for name in (behavior, target) if name], where, least=1)
    sampler = sampler_of(dump, behavior)
    behavior, target = behavior or "rollout", target or "old"
    order, repeats = _order_and_repeats(dump, policies, behavior, target, where)
    compared = (*order, *repeats)
    rows, comparison, diagnosis = read_comparison(dump, compared, sampler, runner)
    moments, count, non_finite = comparison.moments, rows.count, rows.non_finite
    lacking = unobserved(dump, compared)
    broken = recorded_constants(count, dump)
    broken |= set(non_finite.tokens) if count.too_few else set()
    means, numbers = _judged_pairs(comparison, sampler, broken, about)
    values = {pair: under_diagnosis(metrics, diagnosis, pair) for pair, metrics in numbers.items()}
    distances = {pair: metrics["k2_kl"] for pair, metrics in values.items()}
    floor = _noise_floor(about, repeats, values)
    summaries = _summaries(moments, about, sampler, _are_log_probs(diagnosis))
    result = CompareResult(
        provenance=provenance(dump, seed),
        policies=summaries,
        num_sequences=count.sequences,
        num_tokens=count.tokens,
        num_clusters=len(moments.tokens),
        empty_sequences=dump.num_rows - lacking.rows - count.sequences,
        rows_left_out=count.left_out,
        pairs=_pair_results(means, values, floor),
        nearest_policies=[name for name, one in summaries.items() if one.may_be_nearest],
        ladder=ladder(moments, distances, order, floor),
        triangulation=_triangulation(
            distances, order, about, sampler, target if target in order else order[-1], floor
        ),
        noise_floor=floor,
        joined=joined,
        diagnosis=diagnosis,
        figures={f"{a}->{b}": data.figure() for (a, b), data in comparison.figures.items()},
    )
    touched = _touched(values.values())
    return with_findings(result, dump, non_finite=non_finite, unobserved=lacking, values=touched)


def _order_and_repeats(
    dump: Table, policies: Sequence[str], behavior: str, target: str, where: str
) -> tuple[list[str], list[str]]:
    """Return the policies from sampler to trainer, and the policies that are second runs of these.

    `policies` is the order that the user chose, if any.
    """
    about = dump.metadata.get("policies", {})
    alone = not policies and only_policy(dump) is not None
    names = choose(dump.policies, policies, where, least=1 if alone else 2)
    names += [
        name
        for name in dump.policies
        if name not in names and repeat_of(about.get(name, {})) in names
    ]
    order = [name for name in dict.fromkeys(policies) if not repeat_of(about.get(name, {}))]
    order = order or ladder_order(names, about, behavior, target) or names
    return order, [name for name in names if name not in order]


def _pair_results(
    means: Mapping[Pair, BehaviorMeans],
    values: Mapping[Pair, dict[str, MetricValue]],
    floor: NoiseFloor | None,
) -> dict[str, PairResult]:
    """Return the numbers of every ordered pair under `behavior->target`."""
    return {
        f"{one}->{other}": PairResult(
            behavior=one,
            target=other,
            token_means=means[one, other].tokens,
            sequence_means=means[one, other].sequences,
            mismatch=metrics,
            at_floor=at_floor(metrics["k2_kl"], floor),
        )
        for (one, other), metrics in values.items()
    }


def _touched(pairs: Iterable[Mapping[str, MetricValue]]) -> dict[str, MetricValue]:
    """Return every metric once, from a pair in which it is NaN or infinite, if there is one."""
    merged: dict[str, MetricValue] = {}
    for values in pairs:
        for name, value in values.items():
            if name not in merged or (value.value is not None and not isfinite(value.value)):
                merged[name] = value
    return merged


def _judged_pairs(
    comparison: Comparison, sampler: str | None, broken: set[str], about: Mapping[str, Any]
) -> tuple[dict[Pair, BehaviorMeans], dict[Pair, dict[str, MetricValue]]]:
    """Return how the means of every ordered pair are estimated, and the pair's metrics with levels.

    Pairs with a policy of `broken`, which has too few valid log-probs, have no metrics.
    """
    means: dict[Pair, BehaviorMeans] = {}
    values: dict[Pair, dict[str, MetricValue]] = {}
    # The pairs of the sampler come first: their ratios are the weights of the others.
    for pair in sorted(comparison.suites, key=lambda pair: pair[0] != sampler):
        state, weighted = comparison.suites[pair], comparison.weighted.get(pair)
        mean = means[pair] = behavior_means(pair[0], sampler, values.get((str(sampler), pair[0])))
        values[pair] = (
            without_numbers()
            if broken.intersection(pair)
            else judged_pair(
                Suite(state, rounding_of(about, *pair)),
                None if weighted is None else WeightedSuite(state, weighted=weighted),
                mean,
            )
        )
    compared = set(comparison.moments.policies)
    return means, {pair: values[pair] for pair in comparison.suites if compared.issuperset(pair)}


def _are_log_probs(diagnosis: Diagnosis | None) -> bool:
    """Tell whether the columns hold log-probs, so that their means say which fits best.

    A column of sentinels or clipped values would always be the worst.
    """
    named = [] if diagnosis is None else diagnosis.causes
    return all(CAUSES[cause.slug].stage != "storage" for cause in named)


def _summaries(
    moments: Moments, about: Mapping[str, Any], sampler: str | None, are_log_probs: bool
) -> dict[str, PolicySummary]:
    comparable = len(moments.policies) > 1 and are_log_probs
    behind = behind_the_best(moments) if comparable else dict.fromkeys(moments.policies, NOTHING)
    summaries = {}
    for name in moments.policies:
        log_prob = mean(moments.log_prob(name), moments.tokens)
        finite = log_prob.value is not None and isfinite(log_prob.value)
        summaries[name] = PolicySummary(
            setup=describe(about.get(name, {})),
            role=role(name, about.get(name, {}), sampler),
            log_prob_mean=log_prob if finite else NOTHING,
            behind=behind[name],
            may_be_nearest=comparable and is_nearest(behind[name]),
            scoring=about.get(name, {}),
        )
    return summaries


def _noise_floor(
    about: Mapping[str, Any],
    repeats: Sequence[str],
    values: Mapping[Pair, Mapping[str, MetricValue]],
) -> NoiseFloor | None:
    """Return the noise floor of the first policy that was scored twice, if there is one."""
    for name in repeats:
        first = repeat_of(about.get(name, {}))
        if (first, name) in values:
            apart = values[str(first), name]
            return NoiseFloor(
                policy=str(first),
                repeat=name,
                k2=apart["k2_kl"],
                log_ratio_abs_max=apart["log_ratio_abs_max"].value,
            )
    return None


def _triangulation(
    distances: Mapping[Pair, MetricValue],
    order: Sequence[str],
    about: Mapping[str, Any],
    sampler: str | None,
    trainer: str,
    floor: NoiseFloor | None,
) -> Triangulation | None:
    """Triangulate the sampler, the first re-scored policy, and the trainer's."""
    engines = [name for name in order if role(name, about.get(name, {}), sampler) == "engine"]
    if sampler not in order or not engines or trainer in (sampler, *engines):
        return None
    assert sampler is not None
    sides = triangulate(distances, sampler, engines[0], trainer, floor)
    values = [side.value for side in sides.k2.values()]
    finite = all(value is not None and isfinite(value) for value in values)
    return sides if finite else None
