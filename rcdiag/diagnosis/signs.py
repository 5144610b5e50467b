"""The earlier name of the features of a table, which plugins may import: `Features` is the same."""

from __future__ import annotations

from rcdiag.diagnosis.features import Features as Signs

__all__ = ["Signs"]
