"""A result document is JSON with its kind and format version; it is read back without torch."""

from __future__ import annotations

import json
from typing import Any, cast

from rcdiag.errors import RcdiagError
from rcdiag.results.base import FORMAT_VERSION
from rcdiag.results.compare import CompareResult
from rcdiag.results.convert import ConvertResult
from rcdiag.results.diagnose import DiagnoseResult
from rcdiag.results.older import upgraded
from rcdiag.results.plain import structured
from rcdiag.results.replay import ReplayResult
from rcdiag.results.score import ScoreResult
from rcdiag.results.sweep import SweepResult

# A result that measures a table: it has findings, a diagnosis and a page.
Result = ScoreResult | CompareResult | DiagnoseResult | SweepResult | ReplayResult
Document = Result | ConvertResult

KINDS: dict[str, type[Document]] = {
    "score": ScoreResult,
    "compare": CompareResult,
    "diagnose": DiagnoseResult,
    "sweep": SweepResult,
    "replay": ReplayResult,
    "convert": ConvertResult,
}


SAVED = "`result.save(FILE)` (--result FILE)"  # what writes a result document


def from_json(text: str, source: str) -> Document:
    """Read a result document back; RcdiagError names `source` where it cannot be read."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RcdiagError(
            f"{source}: not JSON ({error})", f"give a file that {SAVED} wrote"
        ) from error
    if not isinstance(document, dict) or "format_version" not in document:
        raise RcdiagError(f"{source}: not a result of rcdiag", f"give a file that {SAVED} wrote")
    kind, version = str(document.get("kind")), document["format_version"]
    if kind not in KINDS or version not in range(1, FORMAT_VERSION + 1):
        what = f"kind {document.get('kind')!r}, format_version {version}"
        raise RcdiagError(
            f"{source}: cannot read {what}",
            hint=f"this rcdiag reads {', '.join(KINDS)} of format_version 1 to {FORMAT_VERSION}; a "
            "newer rcdiag made it, or something else did",
        )
    return _read(kind, document, source)


def _read(kind: str, document: dict[str, Any], source: str) -> Document:
    try:
        return cast(Document, structured(KINDS[kind], upgraded(document, kind)))
    except (
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        StopIteration,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise RcdiagError(
            f"{source}: not a whole result ({type(error).__name__}: {error})",
            hint=f"it was cut or edited; make it again with {SAVED}",
        ) from error
