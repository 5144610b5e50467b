"""What a replay should say aloud. To add a finding: one function here, one line below."""

from __future__ import annotations

from rcdiag.results import Finding, ReplayResult


def replay_findings(result: ReplayResult) -> list[Finding]:
    """All findings on a replayed update."""
    return [*_undefined(result), *_unsafe(result), *_parting(result), *_alike(result)]


def _undefined(result: ReplayResult) -> list[Finding]:
    names = {name: each.undefined for name, each in result.presets.items() if each.undefined}
    if not names:
        return []
    return [
        Finding(
            slug="loss-undefined",
            severity="warning",
            message=f"no loss under {', '.join(names)}: {next(iter(names.values()))}; the other "
            "presets go on",
            fix="widen the bounds, or find the cause of the mismatch",
            evidence=names,
        )
    ]


def _unsafe(result: ReplayResult) -> list[Finding]:
    """Presets whose health is bad; the update without correction is an example, not advice."""
    bad = {
        name: [rule.said for rule in each.health.rules if rule.level == "error"]
        for name, each in result.presets.items()
        if each.health.verdict == "error" and each.mode != "naive" and not each.undefined
    }
    if not bad:
        return []
    first, reasons = next(iter(bad.items()))
    return [
        Finding(
            slug="unsafe-update",
            severity="warning",
            message=f"{len(bad)} of {len(result.presets)} updates are unsafe, for example {first}: "
            f"{reasons[0]}",
            fix="choose one whose health is ok (`rcdiag sweep` recommends), or lower the mismatch",
            evidence=bad,
        )
    ]


def _parting(result: ReplayResult) -> list[Finding]:
    """The first step after which a decoupled and a bypass copy are told apart."""
    for step in result.steps:
        ends = {
            name: (each.mode, each.after_step.kl_rollout_new)
            for name, each in step.presets.items()
            if each.after_step is not None and each.after_step.kl_rollout_new.low is not None
        }
        apart = [
            (one, other)
            for one, (mode, a) in ends.items()
            for other, (kind, b) in ends.items()
            if mode == "decoupled" and kind == "bypass" and (a.high < b.low or b.high < a.low)  # type: ignore[operator]
        ]
        if apart:
            one, other = apart[0]
            return [
                Finding(
                    slug="updates-part",
                    severity="note",
                    message=f"from step {step.step} on decoupled and bypass part: {one} is "
                    f"{ends[one][1].value:.2g} nats per token from the sampler, {other} "
                    f"{ends[other][1].value:.2g}",
                    fix="look at the figure over the steps; the one that leaves faster is the one "
                    "to worry about",
                    evidence={"step": step.step, "pairs": [list(pair) for pair in apart[:10]]},
                )
            ]
    return []


def _alike(result: ReplayResult) -> list[Finding]:
    """All the same update: corrections that have nothing to do."""
    pulls = {
        (round(each.coefficients.norm, 12), round(each.coefficients.sum, 12))
        for each in result.presets.values()
        if not each.undefined
    }
    if len(pulls) != 1 or len(result.presets) < 3:
        return []
    return [
        Finding(
            slug="all-updates-alike",
            severity="note",
            message="all presets make the same update on this batch",
            fix="nothing to choose between; look at a step with more mismatch",
            evidence={"presets": list(result.presets)},
        )
    ]
