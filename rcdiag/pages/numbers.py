"""The numbers in a matplotlib drawing as a table, for figures that have no chart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("panel", "series", "x", "y", "value")
Line = tuple[str, str, Any, Any, Any]


def drawn_numbers(figure: Figure) -> tuple[tuple[str, ...], list[Line]]:
    """Return columns and rows of all that a drawing shows, panel by panel.

    A curve has x and y, a bar its middle and height, a cell of a heat map its middle and value, a
    point its place and what its colour says.
    """
    lines = []
    for number, axes in enumerate(figure.axes, 1):
        if not axes.get_visible() or getattr(axes, "_colorbar", None) is not None:
            continue
        title = axes.get_title() or axes.get_title(loc="right") or axes.get_title(loc="left")
        panel = title or f"panel {number}: {axes.get_ylabel() or axes.get_xlabel()}".rstrip(": ")
        lines += [(panel.replace("\n", " "), *line) for line in _of_axes(axes)]
    return COLUMNS, lines


def _of_axes(axes: Axes) -> Iterator[tuple[str, Any, Any, Any]]:
    for number, curve in enumerate(axes.lines, 1):
        if curve.get_transform() != axes.transData:
            continue  # a reference line across the panel, no number of the result
        name = _name(curve, f"curve {number}")
        for x, y in np.asarray(curve.get_xydata(), dtype=float):
            yield name, x, y, ""
    for number, patch in enumerate(axes.patches, 1):
        yield from _of_patch(patch, number)
    for number, collection in enumerate(axes.collections, 1):
        yield from _of_collection(collection, number)
    for number, image in enumerate(axes.images, 1):
        left, right, low, high = image.get_extent()
        values = _numbers(image.get_array())
        rows, columns = values.shape[:2]
        ys = low + (np.arange(rows) + 0.5) * (high - low) / rows
        if image.origin == "upper":
            ys = ys[::-1]
        xs = left + (np.arange(columns) + 0.5) * (right - left) / columns
        for y, row in zip(ys, values, strict=True):
            for x, value in zip(xs, row, strict=True):
                if np.ndim(value) == 0 and np.isfinite(value):
                    yield f"cells {number}", float(x), float(y), float(value)


def _numbers(values: Any) -> NDArray[np.float64]:
    """Return what an artist holds as float64, NaN where it is masked."""
    return np.ma.filled(values.astype(np.float64), np.nan)


def _of_patch(patch: Any, number: int) -> Iterator[tuple[str, Any, Any, Any]]:
    if hasattr(patch, "get_data"):  # a histogram's outline
        values, edges, _ = patch.get_data()
        for value, low, high in zip(values, edges[:-1], edges[1:], strict=True):
            yield _name(patch, "counts"), float(0.5 * (low + high)), float(value), ""
    elif hasattr(patch, "get_width"):
        middle = patch.get_x() + 0.5 * patch.get_width()
        yield _name(patch, "bars"), float(middle), float(patch.get_height()), ""


def _of_collection(collection: Any, number: int) -> Iterator[tuple[str, Any, Any, Any]]:
    name = _name(collection, f"points {number}")
    values = collection.get_array()
    if hasattr(collection, "get_coordinates"):  # a mesh of cells
        corners = np.asarray(collection.get_coordinates(), dtype=float)
        middles = 0.25 * (corners[:-1, :-1] + corners[1:, :-1] + corners[:-1, 1:] + corners[1:, 1:])
        flat = _numbers(values).ravel()
        for (x, y), value in zip(middles.reshape(-1, 2), flat, strict=True):
            if np.isfinite(value):
                yield name, float(x), float(y), float(value)
        return
    places = _numbers(collection.get_offsets())
    if len(places) == 1 and not places.any() and values is None:
        return  # a band between two curves, which are listed already
    shown = [""] * len(places) if values is None or len(values) != len(places) else values
    for (x, y), value in zip(places, shown, strict=True):
        yield name, float(x), float(y), value if isinstance(value, str) else float(value)


def _name(artist: Any, otherwise: str) -> str:
    """Return the label of what is drawn; matplotlib's own begin with an underscore."""
    label = str(artist.get_label())
    return otherwise if not label or label.startswith("_") else label
