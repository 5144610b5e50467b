"""One self-contained HTML page from a result."""

from __future__ import annotations

import importlib.resources
import json

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from rcdiag.report.figures import drawn
from rcdiag.report.svg import to_svg
from rcdiag.report.words import clusters, correction_rows, interval, number, verdict
from rcdiag.results import ScoreResult
from rcdiag.statistics.metrics import FAMILIES, METRICS


def page(result: ScoreResult) -> str:
    """The report: verdict, findings, numbers, figures, provenance; no network, no scripts."""
    environment = Environment(
        loader=PackageLoader("rcdiag.report", "."),
        autoescape=select_autoescape(["html", "j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "interval": interval,
        "largest": largest,
        "shade": shade,
        "visible": lambda text: text.replace("\n", "⏎").replace(" ", "␣"),
        "compact": lambda value: json.dumps(value),
        "pretty": lambda value: json.dumps(value, indent=1),
    }
    style = importlib.resources.files("rcdiag.report").joinpath("page.css").read_text()
    figures = [(name, spec, to_svg(figure, name)) for name, spec, figure in drawn(result)]
    return environment.get_template("page.html.j2").render(
        result=result,
        metrics=METRICS,
        families=FAMILIES,
        headlines=[name for name, metric in METRICS.items() if metric.headline],
        clusters=clusters(result),
        correction_rows=correction_rows(result),
        trainer=next((each.trainer for each in result.corrections.values()), None),
        style=style,
        figures=figures,
        verdict=verdict(result),
    )


def largest(log_ratio: list[float]) -> float:
    """The value that is farthest from 0."""
    return max(log_ratio, key=lambda value: abs(value) if value == value else -1.0)


def shade(log_ratio: float) -> str:
    """Colour class of a token: its sign, and its size in four steps."""
    size = sum(abs(log_ratio) > bound for bound in (0.01, 0.1, 0.5, 2.0))
    return f"{'up' if log_ratio > 0 else 'down'}{size}" if size else ""
