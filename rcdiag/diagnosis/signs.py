"""The name under which plugins import the features of a table: see `rcdiag.diagnosis.features`."""

from __future__ import annotations

from rcdiag.diagnosis.features import Features as Signs

__all__ = ["Signs"]
