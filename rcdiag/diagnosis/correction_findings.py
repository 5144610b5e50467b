"""What corrections should say aloud. To add a finding: one function here, one line below."""

from __future__ import annotations

from rcdiag.results import Finding, ScoreResult
from rcdiag.trainers.plan import Plan


def correction_findings(result: ScoreResult, plan: Plan | None) -> list[Finding]:
    """All findings on the corrections of a result."""
    if plan is None:
        return []
    return [
        *plan.findings,
        *_everything_rejected(result),
        *_without_effect(plan),
        *_mirrored(result),
    ]


def _everything_rejected(result: ScoreResult) -> list[Finding]:
    where: dict[str, list[str]] = {}
    batches = {step: batch.corrections for step, batch in result.steps.items()}
    for step, corrections in (batches or {"the table": result.corrections}).items():
        for name, each in corrections.items():
            if each.kept_tokens == 0:
                where.setdefault(name, []).append(step)
    if not where:
        return []
    said = "; ".join(f"{name} in {_steps(steps)}" for name, steps in where.items())
    return [
        Finding(
            slug="everything-rejected",
            severity="warning",
            message=f"presets that keep no token have no loss (NaN in the trainer): {said}",
            fix="widen the bounds, or find the cause of the mismatch; a mean log-ratio beyond a "
            "geometric bound rejects every long sequence at once",
            evidence=where,
        )
    ]


def _steps(steps: list[str]) -> str:
    if steps == ["the table"]:
        return "the whole table"
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps"


def _without_effect(plan: Plan) -> list[Finding]:
    return [
        Finding(
            slug="setting-without-effect",
            severity="note" if name in plan.trainer.presets else "warning",
            message=f"{name}: {sentence}",
            fix="drop the setting, or turn on what it needs",
            evidence={"trainer": plan.trainer.name},
        )
        for name, config in plan.configs.items()
        for sentence in plan.trainer.ignored(config)
    ]


def _mirrored(result: ScoreResult) -> list[Finding]:
    """k1 bounds that verl's code and its documents read differently, where it matters here."""
    differ = {
        name: {
            "accepted_ratios": each.honest["accepted_ratios"],
            "kept_tokens": each.kept_tokens,
            "kept_tokens_by_documents": each.honest["kept_tokens_by_documents"],
        }
        for name, each in result.corrections.items()
        if each.honest.get("kept_tokens_by_documents", each.kept_tokens) != each.kept_tokens
    }
    if not differ:
        return []
    first, each = next(iter(differ.items()))
    more = f" (and {len(differ) - 1} more)" if len(differ) > 1 else ""
    said = (
        f"{first} keeps {each['kept_tokens']:,} tokens, by the documents "
        f"{each['kept_tokens_by_documents']:,}{more}"
    )
    return [
        Finding(
            slug="mirrored-bounds",
            severity="note",
            message=f"verl holds -log_ratio against k1 bounds, so lower_upper keeps ratios from "
            f"1/upper to 1/lower: {said}",
            fix="write the reciprocal bounds, 1/upper_1/lower, to get what the documents say",
            evidence=differ,
        )
    ]
