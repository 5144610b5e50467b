"""Text of definitions as HTML, with links to the sources that it names."""

from __future__ import annotations

import html
import re

VERL = "https://github.com/verl-project/verl"
SLIME = "https://github.com/THUDM/slime"
NEMO = "https://github.com/NVIDIA-NeMo/RL"

_FILE = r"(?:[\w.-]+/)+[\w.-]+\.(?:py|md|rst|yaml|sh)"
# Pattern of a source in a text -> its URL; the first pattern that matches wins.
_SOURCES: tuple[tuple[str, str], ...] = (
    # A local address, as in an example, is not a source.
    (r"(?P<text>https?://(?!127\.|localhost)[^\s<>,;)]+[^\s<>,;).])", "{text}"),
    (r"(?P<text>arXiv (?P<id>\d{4}\.\d{4,5}))", "https://arxiv.org/abs/{id}"),
    (r"(?P<text>verl (?:issue |PR )?#(?P<id>\d+))", f"{VERL}/issues/{{id}}"),
    (rf"NeMo RL's (?P<text>(?P<id>{_FILE}))", f"{NEMO}/blob/main/{{id}}"),
    # verl's first helper is in none of its newer trees, so it gets no link.
    (
        r"(?P<text>(?P<id>(?!\S+/mismatch_helper)(?:verl|docs/(?:algo|faq))/[\w./-]+\.(?:py|md|rst|yaml))\b)",
        "",
    ),
    (rf"(?P<text>(?P<id>(?:slime|examples)/{_FILE}))", f"{SLIME}/blob/main/{{id}}"),
    (r"(?P<text>JMLR 25\(72\))", "https://arxiv.org/abs/1507.02646"),
)
_ANY = re.compile(
    "|".join(
        re.sub(r"\?P<(\w+)>", rf"?P<\g<1>{n}>", pattern) for n, (pattern, _) in enumerate(_SOURCES)
    )
)
_CODE = re.compile(r"`([^`]+)`")


def linked(text: str) -> str:
    """Return a plain text as HTML: text between backticks as code, sources as links."""
    parts = _CODE.split(text)
    return "".join(
        f"<code>{html.escape(part)}</code>" if n % 2 else _with_links(part)
        for n, part in enumerate(parts)
    )


def _with_links(text: str) -> str:
    made, end = [], 0
    for match in _ANY.finditer(text):
        number = next(n for n in range(len(_SOURCES)) if match[f"text{n}"])
        start, stop = match.span(f"text{number}")
        made += [html.escape(text[end:start]), _link(match, number)]
        end = stop
    return "".join([*made, html.escape(text[end:])])


def _link(match: re.Match[str], number: int) -> str:
    target = _SOURCES[number][1] or f"{VERL}/blob/main/{{id}}"
    groups = match.groupdict()
    where = target.format(text=match[f"text{number}"], id=groups.get(f"id{number}"))
    return f'<a href="{html.escape(where)}">{html.escape(match[f"text{number}"])}</a>'
