"""Pages of causes: one per cause, an index of all, and their place in the navigation."""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from rcdiag.diagnosis.causes.cause_words import (
    FAMILIES,
    PLACES,
    SIDES,
    VERDICTS,
    CauseWords,
    cause_words,
)
from tools.docs.links import linked

INDEX = "causes/index.md"


def cause_pages() -> dict[str, str]:
    """Return the page of every cause: path below docs/ -> Markdown."""
    return {page_of(slug): _page(words) for slug, words in cause_words().items()}


def page_of(slug: str) -> str:
    """Return the path of a cause's page below docs/."""
    return f"causes/{slug}.md"


def with_causes(navigation: list[Any]) -> list[Any]:
    """Put the pages of causes, by family, under the navigation entry of their index."""
    return [
        {title: [INDEX, *_families()] if content == INDEX else content}
        for entry in navigation
        for title, content in entry.items()
    ]


def _families() -> Iterator[dict[str, list[dict[str, str]]]]:
    for family, causes in groupby(cause_words().values(), key=lambda words: words.family):
        yield {FAMILIES[family]: [{words.slug: page_of(words.slug)} for words in causes]}


def index_of_causes() -> str:
    """Return a table of causes for each family, under its heading."""
    return "\n\n".join(
        f"## {FAMILIES[family]}\n\n{_table(list(causes))}"
        for family, causes in groupby(cause_words().values(), key=lambda words: words.family)
    )


def _table(causes: list[CauseWords]) -> str:
    rows = "".join(
        f"<tr><td>{_cause(words.slug)}</td><td>{linked(words.title)}</td>"
        f"<td>{_verdict(words)}</td></tr>"
        for words in causes
    )
    head = "<tr><th>cause</th><th>in a few words</th><th>verdict</th></tr>"
    return f'<table class="causes"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def _cause(slug: str) -> str:
    return f'<a href="{slug}.html"><code>{slug}</code></a>'


def _verdict(words: CauseWords) -> str:
    short = "by size" if words.verdict == "guides" else words.verdict
    return f'<span class="verdict {words.verdict}">{short}</span>'


def _page(words: CauseWords) -> str:
    slug = words.slug
    parts = [
        f"---\ntitle: {slug}\ndescription: {_sentence(words.title)}\n---\n",
        f"# {_sentence(words.title)} {{ #{slug} }}\n",
        f'<table class="entry"><tbody>{"".join(_facts(words))}</tbody></table>\n',
        f"## What happens\n\n<p>{linked(words.says)}</p>\n",
        f"## How it shows\n\n<p>{linked(words.shows)}</p>\n",
        f"## How it is told apart\n\n<p>{linked(words.told_apart)}</p>\n",
        f"## How to repair it\n\n{_mending(words)}\n",
    ]
    if words.look_alikes or words.umbrella:
        parts.append(f"## Look-alikes\n\n{_look_alikes(words)}\n")
    if words.links:
        parts.append(f"## Pages and threads\n\n{_links(words)}\n")
    return "\n".join(parts)


def _sentence(title: str) -> str:
    return f"{title[0].upper()}{title[1:]}"


def _facts(words: CauseWords) -> Iterator[str]:
    yield _row("name", f"<code>{words.slug}</code>")
    yield _row("family", html.escape(FAMILIES[words.family]))
    yield _row("at fault", html.escape(SIDES[words.side]))
    meaning = VERDICTS[words.verdict].partition(": ")[2] or VERDICTS[words.verdict]
    yield _row("verdict", f"{_verdict(words)} {html.escape(meaning)}")
    yield _row("on the command line", f"<code>rcdiag explain {words.slug}</code>")


def _row(heading: str, content: str) -> str:
    return f"<tr><th>{heading}</th><td>{content}</td></tr>"


def _mending(words: CauseWords) -> str:
    lines = "".join(f"<li>{linked(line)}</li>" for line in words.mend)
    text = f"<ol>{lines}</ol>" if len(words.mend) > 1 else f"<p>{linked(words.mend[0])}</p>"
    if not words.mend_in:
        return text
    rows = "".join(
        _row(html.escape(PLACES[place]), linked(option)) for place, option in words.mend_in.items()
    )
    return f'{text}\n<table class="entry"><tbody>{rows}</tbody></table>'


def _look_alikes(words: CauseWords) -> str:
    names = cause_words()
    lines = [_line(names[slug]) for slug in words.look_alikes]
    text = f"<ul>{''.join(lines)}</ul>" if lines else ""
    if words.umbrella:
        broader = "".join(_line(names[slug]) for slug in words.umbrella)
        text += f"\n<p>Where nothing narrower can be known, it is called:</p>\n<ul>{broader}</ul>"
    return text


def _line(words: CauseWords) -> str:
    return f"<li>{_cause(words.slug)}: {linked(words.title)}</li>"


def _links(words: CauseWords) -> str:
    lines = [
        f'<li><a href="{html.escape(link.url)}">{_plain(link.text)}</a></li>'
        for link in words.links
    ]
    return f"<ul>{''.join(lines)}</ul>"


def _plain(text: str) -> str:
    """Return the HTML of a title: text between backticks as code, without links."""
    return "".join(
        f"<code>{html.escape(part)}</code>" if number % 2 else html.escape(part)
        for number, part in enumerate(text.split("`"))
    )
