"""Fields of all results: which of them need an explanation, and which do not."""

from __future__ import annotations

import dataclasses
from types import ModuleType

from rcdiag.results import base, compare, replay, score, sweep

MODULES = (base, score, compare, sweep, replay)

# Texts, labels, ids, and parts whose own fields are explained.
UNSAID: dict[type, set[str]] = {
    base.MetricValue: set(),
    base.Finding: {"message", "fix"},
    base.ProfileBin: {"label"},
    base.Profile: {"title", "unit", "about", "bins"},
    score.CorrectionResult: set(),
    score.TokenProfile: {"token_id", "text"},
    score.SequenceTokens: {"row", "sample_id", "positions", "token_ids", "texts"},
    score.StepResult: {"corrections"},
    score.ScoreResult: {
        *("policies", "corrections", "figures", "profiles"),
        *("worst_tokens", "worst_token_ids", "worst_sequences"),
    },
    compare.PolicySummary: {"about", "role"},  # every role is explained
    compare.PairResult: set(),
    compare.PairFigure: {"cells", "by_probability"},
    compare.Rung: {"start", "end"},
    compare.Ladder: {"policies", "rungs"},
    compare.NoiseFloor: {"policy"},
    compare.Triangulation: set(),
    compare.JoinReport: {"tables", "joined", "named"},
    compare.CompareResult: {"policies", "pairs", "ladder", "triangulation", "joined", "figures"},
    sweep.SweepRow: set(),
    sweep.Configurations: {"templates", "entries"},
    sweep.SweepFamily: {"title", "about", "axis", "configurations"},
    sweep.Candidate: {"name", "family"},
    sweep.Recommendation: {"answer", "reasons", "method", "candidates", "configurations"},
    sweep.ForecastPoint: set(),
    sweep.HeldOutBin: {"label"},
    sweep.Forecast: {"points", "held_out", "about"},
    sweep.SweepResult: {"families", "recommendation", "forecast"},
    replay.Coefficients: set(),
    replay.Shares: set(),
    replay.Denominator: set(),
    replay.Rule: {"name", "said", "source"},
    replay.Health: set(),
    replay.GradientReport: set(),
    replay.AfterStep: set(),
    replay.SplitReport: set(),
    replay.PresetReplay: set(),
    replay.Factor: set(),
    replay.ReplayStep: set(),
    replay.ReplayResult: set(),
}


def parts_of(module: ModuleType) -> list[type]:
    """Dataclasses that a module defines itself."""
    return [
        each
        for each in vars(module).values()
        if dataclasses.is_dataclass(each)
        and isinstance(each, type)
        and each.__module__ == module.__name__
    ]


def fields_of(*modules: ModuleType) -> list[tuple[str, str]]:
    """Part and field, of all that need an explanation."""
    return [
        (part.__name__, field.name)
        for module in modules
        for part in parts_of(module)
        for field in dataclasses.fields(part)
        if field.name not in UNSAID.get(part, set())
    ]
