"""The reference pages: every name that `rcdiag explain` knows, and the functions of the API."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator
from functools import cache

import rcdiag
from rcdiag.glossary import Entry, headings
from tools.docs.causes import page_of
from tools.docs.links import linked

# Page -> its title, its content, and the kinds of names on it.
PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "metrics": (
        "Metrics",
        "The numbers under `mismatch` in the result of `score` and in every pair of `compare`.",
        ("metric", "profile"),
    ),
    "presets": (
        "Presets and corrections",
        "The corrections that trainers ship, what they do with weights, and the estimators that "
        "`rcdiag sweep` ranks.",
        (
            "preset",
            "treatment of weights",
            "option of rejection",
            "estimator family",
            "candidate",
            "answer of a sweep",
        ),
    ),
    "settings": (
        "Settings of trainers",
        "What `--set PRESET.SETTING=VALUE` and `--trainer-config` take, by generation.",
        ("setting", "trainer"),
    ),
    "losses": (
        "Losses",
        "What `rcdiag replay` computes with: policy losses, aggregations, advantages, and what can "
        "be set.",
        (
            "policy loss",
            "aggregation",
            "advantage",
            "setting of a loss",
            "choice of a replay",
        ),
    ),
    "findings": (
        "Findings and rules",
        "What a command finds out of order, the levels of numbers, and the rules of health.",
        ("finding", "level", "rule of health", "constraint"),
    ),
    "logged": (
        "Numbers that trainers log",
        "Every key of the trainers' logs, with its definition by generation.",
        ("number that trainers log",),
    ),
    "fields": (
        "Fields of results",
        "What the result JSON holds. The package ships a JSON Schema for each command in "
        "`rcdiag/results/schemas/`.",
        ("field of a result", "name in results"),
    ),
}
OTHER = (
    "words",
    "Words",
    "The vocabulary of the pages and results, roles of policies, backends, formats and figures.",
)


CAUSE = "cause"  # the kind whose names have pages of their own


@cache
def kinds_of_pages() -> dict[str, tuple[str, ...]]:
    """Return page -> its kinds of names; kinds that no page lists are on the page of words."""
    there = tuple(rcdiag.explain())
    claimed = [kind for _, _, kinds in PAGES.values() for kind in kinds]
    if lost := [kind for kind in claimed if kind not in there]:
        raise ValueError(f"no names of these kinds: {lost}; `rcdiag explain` has {list(there)}")
    pages = {page: kinds for page, (_, _, kinds) in PAGES.items()}
    other = tuple(kind for kind in there if kind not in (*claimed, CAUSE))
    return {**pages, OTHER[0]: other}


def title_of(page: str) -> str:
    """Return the title of a reference page."""
    return OTHER[1] if page == OTHER[0] else PAGES[page][0]


def reference_pages() -> dict[str, str]:
    """Return every generated page: path below docs/ -> Markdown."""
    pages = {f"reference/{page}.md": _page(page) for page in kinds_of_pages()}
    return {"reference/index.md": _index(), **pages, "reference/api.md": api_page()}


def anchor(name: str) -> str:
    """Return the HTML id of a name."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-")


@cache
def place_of_names() -> dict[str, str]:
    """Return name -> page and anchor; if several kinds share a name, that which `explain` finds."""
    names, places = rcdiag.explain(), {}
    for page, kinds in reversed(kinds_of_pages().items()):
        for kind in kinds:
            places |= {name: f"{page}.md#{anchor(name)}" for name in names[kind]}
    return places | {name: f"../{page_of(name)}#{name}" for name in names[CAUSE]}


def _index() -> str:
    says = {page: about for page, (_, about, _) in PAGES.items()} | {OTHER[0]: OTHER[2]}
    names = rcdiag.explain()
    lines = [
        "# Reference",
        "",
        "These pages are written by the definitions themselves when the site is built. "
        "`rcdiag explain NAME` and `rcdiag.explain(name)` give the same text.",
        "",
        "| page | names | holds |",
        "|---|---:|---|",
    ]
    for page, kinds in kinds_of_pages().items():
        count = sum(len(names[kind]) for kind in kinds)
        lines.append(f"| [{title_of(page)}]({page}.md) | {count} | {says[page]} |")
    lines.append(
        f"| [Causes](../causes/index.md) | {len(names[CAUSE])} | What `rcdiag` can name as the "
        "cause of a mismatch, a page for each. |"
    )
    lines.append(
        "| [Python API](api.md) | | Every function of `import rcdiag` with its arguments. |"
    )
    return "\n".join(lines) + "\n"


def _page(page: str) -> str:
    about = OTHER[2] if page == OTHER[0] else PAGES[page][1]
    parts = [f"# {title_of(page)}\n\n{about}\n"]
    names, taken = rcdiag.explain(), set[str]()
    for kind in kinds_of_pages()[page]:
        parts.append(f"## {headings()[kind].replace('`', '')}\n")
        for name in names[kind]:
            if anchor(name) not in taken:
                taken.add(anchor(name))
                parts.append(_entry(rcdiag.explain(name), page))
    return "\n".join(parts)


def _entry(entry: Entry, page: str) -> str:
    rows = "".join(_rows(entry, page))
    return f"### `{entry.name}` {{ #{anchor(entry.name)} }}\n\n<p>{linked(entry.what)}</p>\n" + (
        f'<table class="entry"><tbody>{rows}</tbody></table>\n' if rows else ""
    )


def _rows(entry: Entry, page: str) -> Iterator[str]:
    if entry.also_called:
        names = (f"<code>{name}</code> ({where})" for name, where in entry.also_called.items())
        yield _row("also called", ", ".join(names))
    if entry.formula:
        yield _row("formula", f"<code>{html.escape(entry.formula)}</code>")
    for label in ("direction", "units", "healthy"):
        if value := getattr(entry, label):
            yield _row(label, linked(value))
    for trainers, text in entry.generations.items():
        yield _row(trainers, linked(text))
    if entry.example:
        yield _row("example", linked(entry.example))
    if entry.see:
        yield _row("see", ", ".join(_see(name, page) for name in entry.see))


def _row(label: str, content: str) -> str:
    return f"<tr><th>{html.escape(label)}</th><td>{content}</td></tr>"


def _see(name: str, page: str) -> str:
    shown = f"<code>{html.escape(name)}</code>"
    place = place_of_names().get(name) or place_of_names().get(_explained(name))
    if place is None:
        return shown
    return f'<a href="{place.removeprefix(page + ".md").replace(".md#", ".html#")}">{shown}</a>'


def _explained(name: str) -> str:
    """Return the canonical name that `explain` finds for another spelling."""
    try:
        return rcdiag.explain(name).name
    except rcdiag.RcdiagError:
        return name


def api_page() -> str:
    """Return the page of `import rcdiag`, made from signatures and docstrings."""
    parts = [
        "# Python API\n\nEverything that `import rcdiag` gives. "
        "[From Python](../python.md) shows how to use it.\n"
    ]
    functions = [name for name in rcdiag.__all__ if inspect.isroutine(getattr(rcdiag, name))]
    for name in [*functions, *(each for each in rcdiag.__all__ if each not in functions)]:
        parts.append(f"## `{name}` {{ #{name} }}\n")
        parts.append(_function(name) if name in functions else _class(name))
    return "\n".join(parts)


def _function(name: str) -> str:
    function = getattr(rcdiag, name)
    signature = inspect.signature(function)
    lines = [f"{name}("]
    starred = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            lines.append("    *,")
        starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        lines.append(f"    {parameter},".replace("'", ""))
    returns = str(signature.return_annotation).replace("'", "")
    lines.append(f") -> {returns}")
    dry = "\n`dry_run` takes the same arguments, checks them, and says what would run.\n"
    return (
        "```python\n" + "\n".join(lines) + "\n```\n\n" + _docstring(function)
        + (dry if hasattr(function, "dry_run") else "")
    )  # fmt: skip


def _class(name: str) -> str:
    return _docstring(getattr(rcdiag, name))


def _docstring(thing: object) -> str:
    """Return a docstring as HTML: its paragraphs, and its arguments as a table."""
    text, _, arguments = (inspect.getdoc(thing) or "").partition("\nArgs:\n")
    made = "".join(f"<p>{linked(each)}</p>\n" for each in text.strip().split("\n\n") if each)
    if arguments:
        rows = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE)
        cells = "".join(
            f"<tr><th><code>{name}</code></th><td>{linked(' '.join(about.split()))}</td></tr>"
            for name, about in rows
        )
        made += f'<table class="entry"><tbody>{cells}</tbody></table>\n'
    return made
