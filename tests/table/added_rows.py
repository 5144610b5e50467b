"""Rows of two tokens for a recorder, in a module that child processes import without pytest."""

from __future__ import annotations

from typing import Any

from rcdiag import Recorder


def add(recorder: Recorder, rows: int = 1, step: int = 0, **columns: Any) -> None:
    recorder.add(
        response_ids=[[step, 1]] * rows,
        rollout_log_probs=[[-1.0, -2.0]] * rows,
        old_log_probs=[[-1.5, -2.0]] * rows,
        step=step,
        **columns,
    )
