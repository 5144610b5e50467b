"""One self-contained HTML page from a result."""

from __future__ import annotations

import importlib.resources
import json

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from rcdiag.report.figures import drawn, to_svg
from rcdiag.report.words import number, verdict
from rcdiag.results import ScoreResult
from rcdiag.statistics.metrics import METRICS


def page(result: ScoreResult) -> str:
    """The report: verdict, findings, numbers, figures, provenance; no network, no scripts."""
    environment = Environment(
        loader=PackageLoader("rcdiag.report", "."),
        autoescape=select_autoescape(["html", "j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1)
    style = importlib.resources.files("rcdiag.report").joinpath("page.css").read_text()
    figures = [(name, spec, to_svg(figure, name)) for name, spec, figure in drawn(result)]
    return environment.get_template("page.html.j2").render(
        result=result, metrics=METRICS, style=style, figures=figures, verdict=verdict(result)
    )
