"""Rows that alone are off, as a scene of their own: one replica's law is hidden by the others."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from rcdiag.diagnosis.experiments.fit import unexplained
from rcdiag.diagnosis.experiments.patterns import rows_off
from rcdiag.diagnosis.experiments.scene import Scene, Side

FEWEST, MOST = 6, 0.8  # rows that are off, and the share that they are at most


def apart(scene: Scene, side: Side) -> Scene | None:
    """Return the scene of the rows that are off; None where the others are no model's either."""
    off = rows_off(scene, side)
    if not FEWEST <= off.sum() <= MOST * len(off):
        return None
    at = side.known_at
    others = at[~np.isin(scene.owner[at], scene.rows[off])]
    left = unexplained(
        side.recorded[others], side.honest[others], side.reach[others], side.grain[others]
    )
    return of_rows(scene, off) if len(others) and left.within(scene.noise) else None


def of_rows(scene: Scene, chosen: np.ndarray) -> Scene:
    """Return a scene of which some rows are judged, by flag, [rows]."""
    rows = scene.rows[chosen]
    inside = np.isin(scene.owner, rows)
    of_law = inside[scene.law_at]
    return replace(
        scene,
        rows=rows,
        usable=scene.usable & inside,
        law_at=scene.law_at[of_law],
        law=scene.law.take(of_law),
    )
