"""Sentences about a replayed update, for terminal and page."""

from __future__ import annotations

import math

from msgspec import Struct

from rcdiag.formats import plural
from rcdiag.results import Denominator, Health, PresetReplay, ReplayResult
from rcdiag.results.replay import Factor

# Verdict on an update's health -> the level whose colour it has.
TAGS = {name: name for name in ("ok", "unknown", "note", "warning", "error")} | {
    "cannot judge": "note"
}


# Descriptions of the factors of the ratio.
FACTORS = {"mismatch": "sampler to trainer", "staleness": "drift within the update"}


# Verdicts on an update's health that are not ok, as said of a number of presets.
UNSAFE = {"warning": "with a warning", "error": "with an error", "cannot judge": "not judged"}
# Verdicts on an update's health, the safest first.
HEALTH = ("ok", "note", "warning", "cannot judge", "error")


def health_order(health: Health) -> int:
    """Return the rank of a verdict on an update's health, the safest first."""
    return HEALTH.index(health.verdict) if health.verdict in HEALTH else len(HEALTH)


def factor_name(name: str, factor: Factor) -> str:
    """Return the description of a factor of the ratio with its two policies."""
    return f"{FACTORS.get(name, name)}: {factor.behavior} → {factor.target}"


def is_part(result: ReplayResult) -> bool:
    """Tell whether the batch is one step of a table of several."""
    of_step = result.num_sequences + result.empty_sequences
    return result.step is not None and result.provenance.get("rows", 0) > of_step


def batch_size(result: ReplayResult) -> str:
    """Return the size of the batch; the headline has the tokens of a whole table."""
    if not is_part(result):
        return plural(result.num_sequences, "sequence")
    of_all = f"{result.num_sequences:,} of {result.provenance['rows']:,} sequences"
    return f"{of_all}, {plural(result.num_tokens, 'token')}"


def answer(result: ReplayResult) -> str:
    """Say how many presets pass all health rules, and the verdict on no correction."""
    sentence = _of_presets(result)
    return f"step {result.step} alone: {sentence}" if is_part(result) else sentence


def _of_presets(result: ReplayResult) -> str:
    own = {name: one for name, one in result.presets.items() if one.mode != "naive"}
    naive = [one for name, one in result.presets.items() if name not in own]
    verdicts = [preset.health.verdict for preset in own.values()]
    without = f"without correction: {naive[0].health.verdict}" if naive else ""
    if not verdicts:
        return without
    presets = plural(len(verdicts), "preset")
    passing = verdicts.count("ok")
    counts = [
        f"{count} {words}" for word, words in UNSAFE.items() if (count := verdicts.count(word))
    ]
    if len(verdicts) == 1:
        sentence = f"{next(iter(own))}: {verdicts[0]}"
    else:
        pass_all = "passes" if passing < 2 else "pass"
        others = f" ({', '.join(counts)})" if counts else ""
        sentence = f"{passing or 'none'} of {presets} {pass_all} all health rules{others}"
    if without:
        sentence += f"; {without}"
    valid = result.diagnosis is not None and result.diagnosis.verdict == "correctable"
    if valid and not passing:
        return f"weights are valid, but {sentence}; remove the cause first"
    return sentence


class EqualUpdates(Struct, frozen=True):
    """Presets with the same update."""

    names: tuple[str, ...]
    preset: PresetReplay

    @property
    def title(self) -> str:
        """Return the name of the first preset, and how many more there are."""
        if self.preset.mode == "naive":
            return "no correction"
        more = f" (+{len(self.names) - 1})" if len(self.names) > 1 else ""
        return f"{self.names[0]}{more}"


def equal_updates(result: ReplayResult) -> list[EqualUpdates]:
    """Return groups of presets with the same update.

    No correction is first; others are sorted by health, the safest first, then by how far
    their coefficients are from those without correction.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, preset in sorted(result.presets.items(), key=lambda item: item[1].mode != "naive"):
        groups.setdefault(_update(preset), []).append(name)
    every = [EqualUpdates(tuple(names), result.presets[names[0]]) for names in groups.values()]

    def far_from_none(preset: PresetReplay) -> float:
        """Return how far the norm of the coefficients is from that without correction."""
        beside = relative_norm(result, preset)
        return math.inf if beside is None else abs(beside - 1.0)

    return sorted(
        every,
        key=lambda it: (
            it.preset.mode != "naive",
            health_order(it.preset.health),
            far_from_none(it.preset),
            -it.preset.kept_tokens,
        ),
    )


def by_health(result: ReplayResult) -> list[EqualUpdates]:
    """Return the groups of presets with the same update, the safest first; the sort is stable."""
    return sorted(equal_updates(result), key=lambda group: health_order(group.preset.health))


def _update(preset: PresetReplay) -> tuple[object, ...]:
    """Return a key that equal updates share; sizes are rounded to seven digits.

    The loss is not part of it, since losses with the same coefficients make the same step.
    """
    coefficients, gradient, after = preset.coefficients, preset.gradient, preset.after_step
    sizes = (
        *(coefficients.norm, coefficients.sum, coefficients.abs_sum),
        None if gradient is None else gradient.grad_norm,
        None if after is None else after.kl_old_new.value,
    )
    same = (None if size is None else f"{size:.7g}" for size in sizes)
    return (*same, preset.kept_tokens, preset.health.verdict)


def relative_norm(result: ReplayResult, preset: PresetReplay) -> float | None:
    """Return the norm of a preset's coefficients divided by that without correction."""
    none = next((one for one in result.presets.values() if one.mode == "naive"), None)
    norm = preset.coefficients.norm
    if none is None or not none.coefficients.norm or norm is None:
        return None
    return norm / none.coefficients.norm


def decided_by(health: Health) -> str:
    """Return the first rule that decided a verdict; "" for ok."""
    if health.verdict == "ok":
        return ""
    names = [rule.name for rule in health.rules if rule.level == health.verdict]
    if not names:  # a deciding number is missing
        names = [name for name in health.not_judged if name in {r.name for r in health.rules}]
    return names[0] if names else ""


def divided(by: Denominator) -> str:
    """Say what the loss is divided by."""
    return "nothing" if by.counted == "nothing" else f"{by.divisor:,.0f} {by.counted}"
