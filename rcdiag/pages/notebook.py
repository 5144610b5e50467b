"""A notebook of results, with a cell for each figure and the drawing as stored output."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from rcdiag.pages.figures import applying
from rcdiag.pages.headline import answer, headline
from rcdiag.pages.plot import GROUPS, plot
from rcdiag.pages.rendering import rendered
from rcdiag.pages.style import NOTEBOOK_DPI
from rcdiag.results import Result


def notebook(results: Sequence[tuple[Result, str]]) -> str:
    """Return a notebook of results, each with the relative path to its file."""
    first = headline(results[0][0], "")
    cells = [_words(f"# {first.verdict}: {first.about}"), _code("import rcdiag")]
    for result, path in results:
        cells += _cells(result, path)
    document = {
        "cells": [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells, 1)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _cells(result: Result, path: str) -> list[dict[str, Any]]:
    """Return the cells of one result: its answer, and its figures with captions."""
    name = result.kind
    line = headline(result, answer(result))
    cells = [
        _words(f"## rcdiag {name}\n\n{line.summary}\n\n{line.numbers}"),
        _code(f"{name} = rcdiag.load_result({path!r})\n{name}"),
    ]
    grouped = {one for names in GROUPS.values() for one in names}
    shown = [spec for spec in applying(result) if spec.name not in grouped]
    for group, names in GROUPS.items():
        some = [spec for spec in applying(result) if spec.name in names]
        if some:
            cells.append(_words(f"### Over the {group}\n\n{some[0].caption(result)}"))
            cells.append(_figure(result, name, group))
    for spec in shown:
        cells.append(_words(f"### {spec.title}\n\n{spec.caption(result)}"))
        cells.append(_figure(result, name, spec.name))
    return cells


def _figure(result: Result, name: str, figure: str) -> dict[str, Any]:
    """Return a cell that draws a figure, with the drawing as its output."""
    picture = base64.b64encode(rendered(plot(result, figure), "png", NOTEBOOK_DPI)).decode()
    output = {
        "output_type": "display_data",
        "data": {"image/png": picture, "text/plain": f"<{figure}>"},
        "metadata": {},
    }
    return {**_code(f'{name}.plot("{figure}")'), "outputs": [output]}


def _words(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": text,
    }
