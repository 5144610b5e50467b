"""One result becomes one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from rcdiag.pages.figures import drawn
from rcdiag.pages.formats import interval, number, percent, share
from rcdiag.pages.headline import headline
from rcdiag.pages.kinds import PAGES
from rcdiag.pages.svg import to_svg
from rcdiag.results import Result
from rcdiag.results.base import drawn_sentence

WIDE = 6.0  # inches: figures beyond take the whole width of the page


def page(result: Result) -> str:
    """Write the report as HTML: verdict, findings, numbers, figures, provenance; no network."""
    kind = PAGES[result.kind]
    values: dict[str, Any] = {"provenance_of_policies": {}, "script": None}
    values |= kind.context(result)
    return (
        _environment()
        .get_template(kind.template)
        .render(
            result=result,
            style=importlib.resources.files("rcdiag.pages").joinpath("page.css").read_text(),
            figures=_figures(result),
            headline=headline(result, kind.answer(result)),
            drawn_sentence=drawn_sentence,
            **values,
        )
    )


@dataclass(frozen=True, slots=True)
class InlineFigure:
    """A figure in the form that the template writes."""

    name: str
    title: str
    caption: str
    svg: str
    wide: bool


def _figures(result: Result) -> list[InlineFigure]:
    return [
        InlineFigure(
            name=spec.name,
            title=spec.title,
            caption=spec.caption(result),
            svg=to_svg(figure, spec.name),
            wide=figure.get_figwidth() > WIDE,
        )
        for spec, figure in drawn(result)
    ]


def _ticks(text: str) -> Markup:
    """Write names between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rcdiag.pages", "."),
        autoescape=select_autoescape(["html", "j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ticks": _ticks,
        "number": number,
        "interval": interval,
        "percent": percent,
        "share": share,
        "largest": largest,
        "shade": shade,
        "visible": lambda text: text.replace("\n", "⏎").replace(" ", "␣"),
        "compact": lambda value: json.dumps(value),
        "pretty": lambda value: json.dumps(value, indent=1),
        "sha256": sha256,
    }
    return environment


def sha256(script: str) -> str:
    """Return the hash by which a Content-Security-Policy names a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def largest(log_ratio: list[float]) -> float:
    """Return the value that is farthest from 0."""
    return max(log_ratio, key=lambda value: abs(value) if value == value else -1.0)


def shade(log_ratio: float) -> str:
    """Return the colour class of a token: its sign, and its size in four steps."""
    size = sum(abs(log_ratio) > bound for bound in (0.01, 0.1, 0.5, 2.0))
    return f"{'up' if log_ratio > 0 else 'down'}{size}" if size else ""
