"""Sliders over the bounds of every swept family, with the configuration of their setting."""

from __future__ import annotations

import json
from typing import Any

from rcdiag.pages.blocks import Block, Paragraph, Section, Slot, Terms
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.packing import packed
from rcdiag.pages.sweep.families import NUMBERS, family_chart
from rcdiag.pages.tabs.corrections.treatments import NONE
from rcdiag.results import SweepResult

# Numbers that the sliders show for a setting, with their labels.
READOUT = {
    "kept_token_share": "kept tokens",
    "kept_sequence_share": "kept sequences",
    "kept_groups": "kept groups",
    "ess_token_applied": "ESS tokens",
    "ess_seq_applied": "ESS sequences",
    "ess_trainer": "ESS as verl logs it",
    "mean_weight": "mean weight",
    "lost_mass": "lost mass",
    "truncation_loss": "truncation loss",
    "weight_variance": "variance",
    "weight_distance": "weight bias",
    "bias_bound": "bias bound",
    "reward_shift": "reward shift",
    "advantage_shift": "advantage shift",
    "keep_length_correlation": "keep-length correlation",
    "kept_by_length": "kept by quarter of length",
}
PICKED = "token_tis"  # the family that the sliders start with if nothing is recommended


def sliders(results: DumpResults) -> Section | None:
    sweep = results.sweep
    if sweep is None or not sweep.families:
        return None
    start = _start(results, sweep)
    # The script fills in their rows from the result document, which has the same numbers.
    charts = {
        name: {**family_chart(family).data(), "rows": []} for name, family in sweep.families.items()
    }
    part = Slot(
        name="sliders",
        data={
            "families": {name: family.title for name, family in sweep.families.items()},
            "start": start,
            "charts": packed(json.dumps({"charts": charts, "numbers": NUMBERS})),
            "readout": Terms(items=list(READOUT.items())),
        },
    )
    blocks: list[Block] = [Paragraph(text=_from(results, sweep, start["family"]), soft=True), part]
    return Section(title="Try other bounds", blocks=blocks, name="bounds", screen=True)


def _from(results: DumpResults, sweep: SweepResult, family: str) -> str:
    """Say where the sliders start, and what is shown below them."""
    choice = sweep.recommendation.choice if results.weights_help else None
    chosen = choice is not None and choice != NONE
    common = f"The sliders start at the common bound of {sweep.families[family].title}"
    if chosen:
        start = f"The sliders start at the recommendation, `{choice}`"
    elif results.weights_help and choice == NONE:
        start = f"{common}: the recommendation is no correction, which has no bounds"
    else:
        start = f"{common}: nothing is recommended"
    return f"{start}. Below the curves is the trainer's configuration of the setting shown."


def _start(results: DumpResults, sweep: SweepResult) -> dict[str, Any]:
    """Return the family and row that the sliders start at: the recommendation, or bound 2."""
    choice = sweep.recommendation.choice if results.weights_help else None
    candidates = {candidate.name: candidate for candidate in sweep.recommendation.candidates}
    chosen = candidates.get(choice or "")
    if chosen is not None and chosen.family in sweep.families:
        family = chosen.family
        bounds = chosen.bounds
    else:
        family = PICKED if PICKED in sweep.families else next(iter(sweep.families))
        bounds = {sweep.families[family].axis: 2.0}
    rows = sweep.families[family].rows
    distances = [
        sum(abs(row.bounds[name] - bound) for name, bound in bounds.items() if name in row.bounds)
        for row in rows
    ]
    return {"family": family, "row": distances.index(min(distances))}
