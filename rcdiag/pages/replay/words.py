"""Terminal and page say this about a replayed update."""

from __future__ import annotations

from rcdiag.results import Denominator, Health, PresetReplay, ReplayResult
from rcdiag.results.replay import Factor

# Verdict on the health of an update -> the level whose colour it has.
TAGS = {name: name for name in ("ok", "unknown", "note", "warning", "error")} | {
    "cannot judge": "note"
}


# What the factors of a ratio are called beside their policies.
FACTORS = {"mismatch": "sampler to trainer", "staleness": "drift within the update"}


# Verdicts on the health of an update, the safest first.
HEALTH = ("ok", "note", "warning", "cannot judge", "error")


def by_health(result: ReplayResult) -> dict[str, PresetReplay]:
    """Return the presets by their health, the safest first; equals stay in their order."""
    return dict(sorted(result.presets.items(), key=lambda item: health_order(item[1].health)))


def health_order(health: Health) -> int:
    """Return the place of a verdict on the health of an update, the safest first."""
    return HEALTH.index(health.verdict) if health.verdict in HEALTH else len(HEALTH)


def factor_name(name: str, factor: Factor) -> str:
    """Name a factor of the ratio with its two policies."""
    return f"{FACTORS.get(name, name)}: {factor.behavior} → {factor.target}"


def answer(result: ReplayResult) -> str:
    """Count the presets by the health of their updates; the uncorrected one is only shown."""
    corrected = [
        preset.health.verdict for preset in result.presets.values() if preset.mode != "naive"
    ]
    naive = [preset.health.verdict for preset in result.presets.values() if preset.mode == "naive"]
    counts = [
        f"{count} {word}"
        for word in ("ok", "warning", "error", "cannot judge")
        if (count := corrected.count(word))
    ]
    sentence = f"{len(corrected)} preset{'s' if len(corrected) != 1 else ''}: {', '.join(counts)}"
    if naive:
        sentence += f" (without correction: {naive[0]})"
    return sentence


def decided_by(health: Health) -> str:
    """Name the rule that decided a verdict, with the number of others as bad; empty for ok."""
    if health.verdict == "ok":
        return ""
    names = [rule.name for rule in health.rules if rule.level == health.verdict]
    if not names:  # a number that decides is missing
        names = [name for name in health.not_judged if name in {r.name for r in health.rules}]
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return f"{names[0]}{more}" if names else ""


def divided(by: Denominator) -> str:
    """Say what the loss is divided by."""
    return "nothing" if by.counted == "nothing" else f"{by.divisor:,.0f} {by.counted}"
