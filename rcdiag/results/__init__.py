"""Results of all commands as plain data, written to JSON and read back without torch.

To add a kind of result: a struct with its summary in a file of its own, and one line in KINDS. To
add a field: one line with its `Doc`; `rcdiag explain`, the JSON Schema (`make schema`) and JSON
follow from it.
"""

from __future__ import annotations

from rcdiag.results.base import (
    FORMAT_VERSION,
    SEVERITIES,
    Finding,
    Histogram,
    MetricValue,
    Profile,
    ProfileBin,
    by_severity,
)
from rcdiag.results.coefficients import Coefficients, Denominator, Shares
from rcdiag.results.compare import (
    CompareResult,
    JoinReport,
    Ladder,
    NoiseFloor,
    PairFigure,
    PairResult,
    PolicySummary,
    Rung,
    Triangulation,
)
from rcdiag.results.convert import ConvertResult
from rcdiag.results.correction import CorrectionResult
from rcdiag.results.diagnose import DiagnoseResult
from rcdiag.results.diagnosis import Action, Diagnosis, NamedCause
from rcdiag.results.document import KINDS, Document, Result, from_json
from rcdiag.results.logged import LogComparison, LoggedKey
from rcdiag.results.model_step import AfterStep, GradientReport, SplitReport
from rcdiag.results.plain import to_json, to_plain
from rcdiag.results.replay import (
    Factor,
    Health,
    PairedDifference,
    PresetReplay,
    ReplayResult,
    ReplayStep,
    Rule,
)
from rcdiag.results.score import ScoreResult, StepResult
from rcdiag.results.sequences import (
    BinExamples,
    SequenceContext,
    SequenceTokens,
    TokenAlternatives,
    TokenProfile,
    TokenWeights,
    WorstToken,
)
from rcdiag.results.sweep import SweepFamily, SweepResult, SweepRow

__all__ = [
    "FORMAT_VERSION",
    "KINDS",
    "SEVERITIES",
    "Action",
    "AfterStep",
    "BinExamples",
    "Coefficients",
    "CompareResult",
    "ConvertResult",
    "CorrectionResult",
    "Denominator",
    "DiagnoseResult",
    "Diagnosis",
    "Document",
    "Factor",
    "Finding",
    "GradientReport",
    "Health",
    "Histogram",
    "JoinReport",
    "Ladder",
    "LogComparison",
    "LoggedKey",
    "MetricValue",
    "NamedCause",
    "NoiseFloor",
    "PairFigure",
    "PairResult",
    "PairedDifference",
    "PolicySummary",
    "PresetReplay",
    "Profile",
    "ProfileBin",
    "ReplayResult",
    "ReplayStep",
    "Result",
    "Rule",
    "Rung",
    "ScoreResult",
    "SequenceContext",
    "SequenceTokens",
    "Shares",
    "SplitReport",
    "StepResult",
    "SweepFamily",
    "SweepResult",
    "SweepRow",
    "TokenAlternatives",
    "TokenProfile",
    "TokenWeights",
    "Triangulation",
    "WorstToken",
    "by_severity",
    "from_json",
    "to_json",
    "to_plain",
]
