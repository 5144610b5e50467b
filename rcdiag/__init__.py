"""Diagnose offline how far the sampling policy is from the training policy, and why.

    import rcdiag

    table = rcdiag.open_table("dump.parquet")
    result = rcdiag.score(table, target="old", trainer="verl")
    result.mismatch["k3_kl"].value, result.frame()

Every command of `rcdiag` is a function of this package; the command's options are its keywords.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rcdiag.lazy import attributes

if TYPE_CHECKING:
    from rcdiag.api.compare import compare
    from rcdiag.api.convert import convert
    from rcdiag.api.diagnose import diagnose
    from rcdiag.api.explain import explain
    from rcdiag.api.replay import replay
    from rcdiag.api.report import load_result, report
    from rcdiag.api.score import score
    from rcdiag.api.sweep import emit, sweep
    from rcdiag.errors import RcdiagError
    from rcdiag.progress import Progress
    from rcdiag.results import (
        CompareResult,
        ConvertResult,
        DiagnoseResult,
        Finding,
        MetricValue,
        ReplayResult,
        Result,
        ScoreResult,
        SweepResult,
    )
    from rcdiag.table.opening import open_table
    from rcdiag.table.recorder import Recorder
    from rcdiag.table.table import Table

__all__ = [
    "CompareResult",
    "ConvertResult",
    "DiagnoseResult",
    "Finding",
    "MetricValue",
    "Progress",
    "RcdiagError",
    "Recorder",
    "ReplayResult",
    "Result",
    "ScoreResult",
    "SweepResult",
    "Table",
    "compare",
    "convert",
    "diagnose",
    "emit",
    "explain",
    "load_result",
    "open_table",
    "replay",
    "report",
    "score",
    "sweep",
]

# Names are imported on first access, so `import rcdiag` itself loads nothing.
_HOMES = {
    "rcdiag.api.compare": ("compare",),
    "rcdiag.api.convert": ("convert",),
    "rcdiag.api.diagnose": ("diagnose",),
    "rcdiag.api.explain": ("explain",),
    "rcdiag.api.replay": ("replay",),
    "rcdiag.api.report": ("load_result", "report"),
    "rcdiag.api.score": ("score",),
    "rcdiag.api.sweep": ("emit", "sweep"),
    "rcdiag.errors": ("RcdiagError",),
    "rcdiag.results": (
        *(
            "CompareResult",
            "ConvertResult",
            "DiagnoseResult",
            "Finding",
            "MetricValue",
            "ReplayResult",
            "Result",
            "ScoreResult",
        ),
        "SweepResult",
    ),
    "rcdiag.table.recorder": ("Recorder",),
    "rcdiag.table.table": ("Table",),
    "rcdiag.progress": ("Progress",),
    "rcdiag.table.opening": ("open_table",),
}
__getattr__, __dir__ = attributes(__name__, _HOMES)
