"""What a comparison should say aloud. To add a finding: one function here, one line below."""

from __future__ import annotations

from dataclasses import replace

from rcdiag.diagnosis.triangulation import HEALTHY
from rcdiag.results import CompareResult, Finding, JoinReport, Triangulation

# By verdict; the message is completed by who, and how far apart.
_TRIANGULATED = {
    finding.slug: finding
    for finding in (
        Finding(
            slug="engine-against-trainer",
            severity="warning",
            message="recorded and re-scored log-probs agree and the trainer's stand apart: engine "
            "and trainer compute different functions (precision, kernels, model code), or the "
            "trainer's log-probs are of other weights",
            fix="look at the ladder for the step that adds most; score the trainer's precision "
            "with vllm",
        ),
        Finding(
            slug="generation-against-rescoring",
            severity="warning",
            message="what was recorded stands apart of both re-scored and trainer log-probs: "
            "something happened while generating (sampling parameters, stale weights, decode "
            "kernels, speculative decoding, an update in flight, or a bad dump)",
            fix="check temperature, top-p and weights of the sampler; re-score by decode "
            "(path=decode)",
        ),
        Finding(
            slug="rescoring-stands-apart",
            severity="warning",
            message="recorded and trainer log-probs agree and the re-scored ones stand apart: the "
            "re-scoring run is set up differently (checkpoint, adapter, temperature, prefix cache)",
            fix="check model, adapter and options of the re-scored policy before believing it",
        ),
        Finding(
            slug="three-differ",
            severity="warning",
            message="recorded, re-scored and trainer log-probs all differ: two faults, or tokens "
            "that do not line up",
            fix="check token ids and prompts first; then re-score by decode and in the trainer's "
            "precision",
        ),
        Finding(
            slug="three-agree",
            severity="note",
            message="recorded, re-scored and trainer log-probs differ little, and none stands "
            "apart: rounding",
            fix="nothing to mend between engine and trainer; look at steps and staleness instead",
        ),
    )
}


def compare_findings(result: CompareResult, sampler: str) -> list[Finding]:
    """All findings on a comparison."""
    return [
        *_joined(result.joined),
        *_triangulated(result.triangulation),
        *_not_nearest(result, sampler),
        *_at_floor(result),
    ]


def _joined(report: JoinReport | None) -> list[Finding]:
    if report is None or not (report.tokens_differ or any(report.missing.values())):
        return []
    lacking = "; ".join(
        f"{table} lacks {count:,}" for table, count in report.missing.items() if count
    )
    differ = f"{report.tokens_differ:,} have other tokens" if report.tokens_differ else ""
    said = "; ".join(each for each in (lacking, differ) if each)
    return [
        Finding(
            slug="rows-left-out-of-the-join",
            severity="warning",
            message=f"{report.joined:,} samples are in all tables with the same tokens; left out: "
            f"{said} (first: {', '.join(report.named)})",
            fix="score the same dump in all runs; samples with other tokens are other samples",
            evidence={
                "missing": report.missing,
                "tokens_differ": report.tokens_differ,
                "named": report.named,
            },
        )
    ]


def _triangulated(found: Triangulation | None) -> list[Finding]:
    if found is None:
        return []
    finding = _TRIANGULATED[found.verdict]
    if all(each.value is not None and each.value < HEALTHY for each in found.k2.values()):
        finding = replace(finding, severity="note")  # somebody stands apart, and not far
    who = f"`{found.sampler}`, `{found.engine}`, `{found.trainer}`"
    apart = ", ".join(f"{pair} {each.value:.2g}" for pair, each in found.k2.items())
    return [
        replace(
            finding,
            message=f"{finding.message} ({who}; k2 in nats per token: {apart})",
            evidence={"k2": {pair: each.value for pair, each in found.k2.items()}},
        )
    ]


def _not_nearest(result: CompareResult, sampler: str) -> list[Finding]:
    """By theory.md 0, F2: the sampler's own log-probs have the highest mean."""
    if sampler not in result.policies or result.policies[sampler].nearest:
        return []
    behind = result.policies[sampler].behind
    if behind.low is None:
        return []
    best = max(result.policies, key=lambda name: result.policies[name].log_prob_mean.value or 0.0)
    return [
        Finding(
            slug="recorded-is-not-nearest",
            severity="warning",
            message=f"`{best}` is nearer to what sampled the tokens than `{sampler}`, by "
            f"{behind.value:.2g} nats per token ({behind.low:.2g} to {behind.high:.2g}): "
            f"`{sampler}` is not the law that sampled, and importance weights against it "
            "correct for the wrong policy",
            fix="find what the sampler really did (temperature, top-p, weights); record its "
            "processed log-probs",
            evidence={"nearest": result.nearest, "behind": behind.value},
        )
    ]


def _at_floor(result: CompareResult) -> list[Finding]:
    floor = result.noise_floor
    names = [name for name, pair in result.pairs.items() if pair.at_floor]
    if floor is None:
        return []
    once = [name for name in names if name in result.figures]
    again = f"{floor.policy}->{floor.repeat}", f"{floor.repeat}->{floor.policy}"
    others = [name for name in once if name not in again]
    said = (
        f"no further apart than that: {', '.join(others)}" if others else "all pairs are above it"
    )
    return [
        Finding(
            slug="noise-floor",
            severity="note",
            message=f"`{floor.policy}` differs from itself in another batch by k2 "
            f"{floor.k2.value:.2g} nats per token, at most {floor.log_ratio_abs_max or 0.0:.2g} "
            f"nats; {said}",
            fix="differences at the floor are noise of kernels that depend on the batch; do not "
            "look for their cause",
            evidence={"k2": floor.k2.value, "pairs": others},
        )
    ]
