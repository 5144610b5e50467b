"""Read result documents: JSON with a kind and a format version. No torch is needed."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from rcdiag.errors import RcdiagError
from rcdiag.results.base import FORMAT_VERSION
from rcdiag.results.compare import CompareResult
from rcdiag.results.convert import ConvertResult
from rcdiag.results.diagnose import DiagnoseResult
from rcdiag.results.doc import documented_fields
from rcdiag.results.faults import incompleteness, type_fault
from rcdiag.results.older import upgraded
from rcdiag.results.plain import from_plain, to_plain
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
    """Read a result document back; RcdiagError names `source` if it cannot be read."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RcdiagError(
            f"{source}: not JSON ({error})", f"give a file that {SAVED} wrote"
        ) from error
    names = ("kind", "format_version")
    missing = [name for name in names if not isinstance(document, dict) or name not in document]
    if missing:
        raise RcdiagError(
            f"{source}: not a result of rcdiag: `{missing[0]}` is missing",
            hint=f"give a file that {SAVED} wrote",
        )
    kind, version = str(document["kind"]), document["format_version"]
    if kind not in KINDS or version not in range(1, FORMAT_VERSION + 1):
        what = f"`kind` {document['kind']!r}, `format_version` {version!r}"
        raise RcdiagError(
            f"{source}: cannot read {what}",
            hint=f"this rcdiag reads {', '.join(KINDS)} of format_version 1 to {FORMAT_VERSION}; a "
            "newer rcdiag or another program wrote it",
        )
    return _read(kind, document, source)


def _read(kind: str, document: dict[str, Any], source: str) -> Document:
    try:
        current = upgraded(document, kind)
        fault = incompleteness(KINDS[kind], current)
        if fault is None:
            return cast(Document, from_plain(KINDS[kind], current))
    except msgspec.ValidationError:
        fault = type_fault(KINDS[kind], current)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        fault = str(error)
    except RecursionError:
        fault = "it is nested too deeply"
    raise RcdiagError(
        f"{source}: not a complete result: {fault}",
        hint=f"it was cut or edited; make it again with {SAVED}",
    )


def odd_value(result: Document) -> str | None:
    """Say which value of a result does not fit its description; None where none is found.

    It checks the dictionaries that are documented but not checked when they are read: provenance,
    the data of figures, the evidence of causes.
    """
    for part in documented_fields(type(result)):
        value = getattr(result, part.name)
        if part.doc.keys is None or value is None:
            continue
        fault = type_fault(part.doc.keys, to_plain(value), part.name)
        if fault is not None:
            return fault
    for place, cause in enumerate([] if result.diagnosis is None else result.diagnosis.causes):
        for entry, facts in enumerate(cause.evidence):
            for name in ("name", "reads"):
                if name not in facts:
                    where = f"diagnosis.causes.{place}.evidence.{entry}"
                    return f"in `{where}` field `{name}` is missing"
    return None
