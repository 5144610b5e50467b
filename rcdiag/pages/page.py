"""One self-contained HTML page of results, from one template, stylesheet and script."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape
from msgspec import Struct

from rcdiag.diagnosis.causes.catalogue import CAUSES
from rcdiag.diagnosis.causes.cause_words import cause_words
from rcdiag.formats import capitalised, plural
from rcdiag.pages.blocks import Figures, PageTable, Slot, Tab
from rcdiag.pages.headline import NOT_JUDGED, by_reason, level_of, logged_steps
from rcdiag.pages.merge import DumpResults, merged
from rcdiag.pages.packing import packed, packed_document
from rcdiag.pages.score.words import holds_text
from rcdiag.pages.tabs import about, change, corrections, diagnosis, ladder, tokens, update
from rcdiag.results import SEVERITIES, Result, to_plain
from rcdiag.results.base import LEVELS as METRIC_LEVELS
from rcdiag.results.base import counted_rows

# name -> its explanation for the page's popovers; None for an unknown name.
Explain = Callable[[str], Mapping[str, str] | None]

WORST_TOKENS, PRINTED = "worst-tokens", 10  # rows of this table that page.css prints
QUOTED = re.compile(r"`([^`]+)`")
# Where a long name may be broken: `sample_data/`, `versions.`, `2.13.0+`; never within a number.
SEAMS = re.compile(r"(?<=\w[_/])(?=[\w{])|(?<=[a-z][.])(?=[a-z])|(?<=\d)(?=[+][a-z])", re.I)
SCRIPTS = (
    "base.js",
    "scales.js",
    "charts.js",
    "figures.js",
    "tables.js",
    "parts.js",
    "transcript.js",
    "examples.js",
    "tabs.js",
)
# Colours of the favicon: those of the levels on white.
COLOURS = {"ok": "#1a7f37", "unknown": "#59636e", "warning": "#8a5a00", "error": "#b3261e"}


class PageHead(Struct, frozen=True):
    """The part of the page above all tabs."""

    level: str
    verdict: str
    name: str
    facts: Sequence[str]


def page(
    results: Result | Sequence[Result],
    *,
    against: Result | Sequence[Result] = (),
    explain: Explain | None = None,
) -> str:
    """Return the HTML page of one dump, or of two dumps side by side.

    Args:
        results: results of one dump, at most one of each command.
        against: results of a second dump; the page then says what changed.
        explain: returns the text of a popover for a name; without it there are no popovers.
    """
    dump = merged(_listed(results))
    other = merged(_listed(against)) if _listed(against) else None
    if other is None:
        dumps, head, title, tabs = [dump], _head(dump), _title(dump), _tabs(dump)
    else:
        dumps, head = [dump, other], _head_of_two(dump, other)
        title = f"{head.verdict}: {head.name}"
        tabs = [change.tab(dump, other), about.tab(dumps)]
    popovers = Popovers()
    folder = importlib.resources.files("rcdiag.pages")
    parts = [folder.joinpath("script", name).read_text() for name in SCRIPTS]
    return (
        _environment(popovers)
        .get_template("page.html.j2")
        .render(
            title=title,
            icon=_icon(head),
            head=head,
            tabs=tabs,
            levels=(*METRIC_LEVELS, *SEVERITIES),
            left_to_screen=_left_to_screen(tabs),
            figures=_figures(tabs),
            explained=lambda: popovers.entries(explain),
            documents=_documents(dumps),
            style=_without_comments(folder.joinpath("page.css").read_text()),
            script='"use strict";\n' + _without_comments("".join(parts)),
        )
        .lstrip()
    )


def _listed(results: Result | Sequence[Result]) -> list[Result]:
    return list(results) if isinstance(results, Sequence) else [results]


def _tabs(dump: DumpResults) -> list[Tab]:
    """Make all tabs that have data."""
    made = [
        diagnosis.tab(dump),
        tokens.tab(dump),
        corrections.tab(dump),
        ladder.tab(dump),
        update.tab(dump),
        about.tab([dump]),
    ]
    return [tab for tab in made if tab is not None]


def _head(dump: DumpResults) -> PageHead:
    """Return the head: verdict, pair, size, steps, date, and whether the page holds text."""
    behavior, target = dump.pair
    if dump.diagnose is not None and dump.diagnose.logs:
        size = logged_steps(dump.diagnose.logs)
    else:
        rows = counted_rows(dump.largest.num_sequences, dump.rows_left_out, "response")
        size = f"{rows}, {dump.largest.num_tokens:,} tokens"
    sequences = [] if dump.score is None else dump.score.readable_sequences
    holds = "holds token ids, no text" if sequences else "holds no text"
    if dump.diagnose is not None and dump.diagnose.logs:
        holds = ""  # a log has none
    if with_text := sum(map(holds_text, sequences)):
        holds = f"holds text of {plural(with_text, 'response')}"
    facts = [
        f"{behavior} → {target}" if target else behavior,
        size,
        _steps(dump),
        str(dump.results[0].provenance.get("time", ""))[:10],
        holds,
    ]
    return PageHead(
        level="unknown" if dump.diagnosis is None else level_of(dump.diagnosis),
        verdict=dump.verdict or NOT_JUDGED,
        name=dump.dump,
        facts=[fact for fact in facts if fact],
    )


def _steps(dump: DumpResults) -> str:
    """Say which training steps the page covers."""
    steps = [] if dump.score is None else sorted(dump.score.steps, key=int)
    if steps:
        return f"steps {steps[0]} to {steps[-1]}"
    # A table of one step has it in every row.
    rows = [] if dump.score is None else dump.score.readable_sequences
    known = [row.step for row in rows] + ([] if dump.replay is None else [dump.replay.step])
    step = next((step for step in known if step is not None), None)
    return "" if step is None else f"step {step}"


def _head_of_two(before: DumpResults, after: DumpResults) -> PageHead:
    verdicts = [_head(dump).verdict for dump in (before, after)]
    times = [str(dump.results[0].provenance.get("time", ""))[:10] for dump in (before, after)]
    return PageHead(
        level=_head(after).level,
        verdict=" → ".join(dict.fromkeys(verdicts)),
        name=f"{before.dump} → {after.dump}",
        facts=[" → ".join(dict.fromkeys(times)), "holds no text"],
    )


def _title(dump: DumpResults) -> str:
    """Return the page's title: verdict, dump and cause, to recognise it among browser tabs."""
    diagnosed = dump.diagnosis
    if diagnosed is None:
        return f"{NOT_JUDGED}: {dump.dump}"
    title = f"{diagnosed.verdict}: {dump.dump}"
    if not diagnosed.causes:
        return title
    slug = diagnosed.causes[0].slug
    words = CAUSES[slug].words if slug in CAUSES else cause_words().get(slug)
    return f"{title}, {slug if words is None else words.title}"


def _icon(head: PageHead) -> str:
    """Draw the favicon: a disc in the verdict's colour with its first letter."""
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'><circle cx='8' cy='8' r='8' "
        f"fill='{COLOURS.get(head.level, COLOURS['unknown'])}'/><text x='8' y='12' "
        "font-family='sans-serif' font-size='11' font-weight='700' text-anchor='middle' "
        f"fill='#fff'>{head.verdict[-1:] if '→' in head.verdict else head.verdict[:1]}</text></svg>"
    )
    return f"data:image/svg+xml,{quote(svg)}"


def _figures(tabs: Sequence[Tab]) -> dict[str, Any]:
    """Return the charts of all figures by name, for the script."""
    blocks = [block for tab in tabs for section in tab.sections for block in section.blocks]
    figures = [one for block in blocks if isinstance(block, Figures) for one in block.items]
    return {figure.name: figure.chart for figure in figures if figure.chart is not None}


def _left_to_screen(tabs: Sequence[Tab]) -> list[str]:
    """List what is left out when the page is printed, in the order of the page."""
    left = []
    for section in (section for tab in tabs for section in tab.sections):
        if any(isinstance(block, Slot) and block.name == "pair" for block in section.blocks):
            left.append("the numbers of each pair")
        elif section.screen and section.title:
            left.append(section.title.lower())
        tables = [block for block in section.blocks if isinstance(block, PageTable)]
        if any(table.name == WORST_TOKENS and len(table.rows) > PRINTED for table in tables):
            left.append(f"tokens after the {PRINTED} with the largest |log-ratio|")
    return left


def _documents(dumps: Sequence[DumpResults]) -> dict[str, str]:
    """Pack every result document with all digits, for the script and for downloads."""
    sides = ("",) if len(dumps) == 1 else ("before-", "after-")
    return {
        f"{side}{result.kind}": packed_document(to_plain(result))
        for side, dump in zip(sides, dumps, strict=True)
        for result in dump.results
    }


def _without_comments(text: str) -> str:
    """Remove indentation and comment lines from a script or stylesheet."""
    return re.sub(r"^\s*(//.*\n|/\*.*\*/\n)?", "", text, flags=re.MULTILINE)


def _parts_of_name(text: str) -> Markup:
    """Let a long name break after underscores, slashes and dots, but not within numbers."""
    return Markup(SEAMS.sub("<wbr>", str(escape(text))))


def _command(text: str) -> Markup:
    """Let a command line break between words, but not within the name of an option."""
    words = [
        Markup('<span class="option">{}</span>').format(word)
        if word.startswith("-")
        else _parts_of_name(word)
        for word in text.split(" ")
    ]
    return Markup(" ").join(words)


def script_json(value: Any) -> Markup:
    """Encode data as JSON in which no text can close the HTML element around it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


class Popovers:
    """Names that open a popover, in the order of the page: filters that write them keep them."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def named(self, name: str) -> str:
        """Keep a name that the template marks itself."""
        self.names[name] = None
        return name

    def ticks(self, text: str) -> Markup:
        """Turn names between backticks into code that opens their glossary entry."""
        self.names |= dict.fromkeys(QUOTED.findall(text))
        return Markup(QUOTED.sub(r'<code class="term">\1</code>', str(escape(text))))

    def linked(self, text: str, names: Sequence[str]) -> Markup:
        """Link the first occurrence of each name in a sentence to its popover."""
        written = str(self.ticks(text))
        for name in map(self.named, names):
            mark = f'<span class="term" data-term="{escape(name)}">{escape(name)}</span>'
            written = re.sub(rf"(?<![\w\"-]){re.escape(name)}(?![\w\"-])", mark, written, count=1)
        return Markup(written)

    def entries(self, explain: Explain | None) -> dict[str, Mapping[str, str]]:
        """Return the explanations of the names so far that have one."""
        found = {} if explain is None else {name: explain(name) for name in self.names}
        return {name: entry for name, entry in found.items() if entry is not None}


def _environment(popovers: Popovers) -> Environment:
    environment = Environment(
        loader=PackageLoader("rcdiag.pages", "."),
        autoescape=select_autoescape(["html", "j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ticks": popovers.ticks,
        "named": popovers.named,
        "terms": popovers.linked,
        # No attribute for an empty value.
        "attribute": lambda value, name: Markup(f' {name}="{escape(value)}"') if value else "",
        "parts": _parts_of_name,
        "capitalised": capitalised,
        "command": _command,
        "by_reason": lambda terms: by_reason(terms.items).items(),
        "compact": json.dumps,
        "pretty": lambda value: json.dumps(value, indent=1),
        "packed": packed,
        "script_json": script_json,
        "sha256": sha256,
    }
    return environment


def sha256(script: str) -> str:
    """Return the hash by which a Content-Security-Policy names a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
