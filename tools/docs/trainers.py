"""Pages of trainers: one for each that has no handwritten page, and a table of all trainers."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rcdiag.corrections.correction import Correction
from rcdiag.corrections.describe import describe
from rcdiag.trainers import TRAINERS, families
from rcdiag.trainers.by_generation import settings_text
from rcdiag.trainers.toml_words import KeyWords, read_findings, read_keys, read_settings, read_terms
from rcdiag.trainers.trainer import Refused, Trainer
from tools.docs.links import linked

DOCS = Path(__file__).parents[2] / "docs"
INDEX = "trainers/index.md"
_MEANS = {"geometric": "geometric mean", "sequence": "product", "segment": "mean of a run"}


def table(head: tuple[str, ...], rows: Any) -> str:
    """Return an HTML table; the cells are HTML."""
    titles = "".join(f"<th>{title}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def page_of(family: str) -> str:
    """Return the path of a trainer's page below docs/."""
    return f"trainers/{family}.md"


def trainer_pages() -> dict[str, str]:
    """Return the page of every trainer without a handwritten one: path below docs/ -> Markdown."""
    return {
        page_of(family): "\n\n".join(_page(family, trainer)) + "\n"
        for family, trainer in families().items()
        if not (DOCS / page_of(family)).exists()
    }


def with_trainers(navigation: list[Any]) -> list[Any]:
    """Put every trainer's page under the navigation entry that holds their index."""
    pages = [INDEX, *({family: page_of(family)} for family in families())]
    return [
        {title: pages if isinstance(content, list) and INDEX in content else content}
        for entry in navigation
        for title, content in entry.items()
    ]


def all_trainers() -> str:
    """Return a table of what each trainer's newest generation does, from its definition."""
    return table(
        (
            "trainer",
            "without a setting",
            "weights of sequences",
            "outside the bounds",
            "rejection leaves the mask",
            "divided by",
            "guard before exp",
        ),
        (
            [
                f'<a href="{family}.html">{html.escape(family)}</a>',
                html.escape(describe(_unset(trainer))),
                *_of_presets(trainer),
                html.escape(_denominator(trainer)),
                html.escape(_guard(trainer)),
            ]
            for family, trainer in families().items()
        ),
    )


def _unset(trainer: Trainer) -> Correction:
    return trainer.read({**trainer.settings, **trainer.unset})


def _corrections(trainer: Trainer) -> list[Correction]:
    corrections = []
    for preset in trainer.presets.values():
        try:
            corrections.append(trainer.read({**trainer.settings, **preset}))
        except Refused:  # a preset that the trainer itself refuses
            continue
    return corrections


def _of_presets(trainer: Trainer) -> tuple[str, str, str]:
    """Return the levels of sequence weights, their treatment and rejection in the presets."""
    corrections = _corrections(trainer)
    weightings = [one.weighting for one in corrections if one.weighting is not None]
    levels = {_MEANS[one.level]: None for one in weightings if one.level in _MEANS}
    outside = {one.outside: None for one in weightings if math.isfinite(one.upper)}
    if any(one.zeroing for one in corrections):
        outside["zero"] = None
    rejects = any(one.rejections or one.veto is not None for one in corrections)
    words = [", ".join(names) or "-" for names in (levels, outside)]
    return words[0], words[1], "yes" if rejects else "no"


def _denominator(trainer: Trainer) -> str:
    aggregation = trainer.update.aggregations[trainer.update.defaults.aggregation]
    return f"{aggregation.default} ({aggregation.name})"


def _guard(trainer: Trainer) -> str:
    guards = dict.fromkeys(one.guard for one in _corrections(trainer))
    texts = []
    for guard in guards:
        bound = "none" if math.isinf(guard.bound) else f"±{guard.bound:g}"
        stays = {
            "stays": "",
            "equal": ", NaN or infinite is ratio 1",
            "nan_equal": ", NaN is ratio 1",
            "zero": ", NaN is weight 0",
        }[guard.non_finite]
        texts.append(bound + (" by token" if guard.before_sums else "") + stays)
    return "; ".join(texts)


def _page(family: str, newest: Trainer) -> Iterator[str]:
    known = [trainer for trainer in TRAINERS.values() if trainer.family == family]
    yield f"# {family}"
    yield "This page is written by the definitions of the trainer when the site is built."
    yield table(
        ("<code>--trainer</code>", "released", "what it does", "read in"),
        (
            [
                _code(one.name),
                linked(one.words.released),
                linked(one.words.says),
                linked(one.words.source),
            ]
            for one in known
        ),
    )
    yield f"Its settings stand in {linked(newest.words.place)}."
    yield "## Presets"
    yield f"Without a setting: {html.escape(describe(_unset(newest)))}."
    yield table(
        ("preset", "settings", "does"),
        (
            [_code(name), html.escape(settings_text(config)), html.escape(_does(newest, config))]
            for name, config in newest.presets.items()
        ),
    )
    yield from _settings(newest)
    yield from _traps(newest)
    yield from _logged(newest)
    terms = read_terms(newest.package)
    if terms:
        yield "## Its words"
        yield table(
            ("word", "means"),
            (
                [_code(term.name), linked("; ".join(dict.fromkeys(term.says.values())))]
                for term in terms.values()
            ),
        )


def _does(trainer: Trainer, config: Any) -> str:
    try:
        return describe(trainer.read({**trainer.settings, **config}))
    except Refused as error:
        return f"the trainer stops: {error.message}"


def _settings(trainer: Trainer) -> Iterator[str]:
    words = read_settings(trainer.package)
    yield "## Settings"
    yield table(
        ("setting", "default", "does"),
        (
            [
                _code(name),
                html.escape(settings_text({name: default})[len(name) + 2 :]),
                linked(words[name].says) if name in words else "",
            ]
            for name, default in trainer.settings.items()
        ),
    )


def _traps(trainer: Trainer) -> Iterator[str]:
    findings = read_findings(trainer.package)
    if findings:
        yield "## Traps"
        for finding in findings.values():
            source = f" {linked(finding.source)}" if finding.source else ""
            name = f"[`{finding.slug}`](../reference/findings.md#{finding.slug})"
            yield f"{name} {linked(finding.says)} What to do: {linked(finding.fix)}.{source}"


def _logged(trainer: Trainer) -> Iterator[str]:
    keys = [words for words in read_keys(trainer.package).values() if trainer.name in words.names]
    if keys:
        yield "## What it logs"
        yield table(
            ("key", "is", "formula"),
            ([_code(words.names[trainer.name]), *_of_key(words, trainer)] for words in keys),
        )


def _of_key(words: KeyWords, trainer: Trainer) -> tuple[str, str]:
    detail = words.generations.get(trainer.name, "")
    return linked(words.says + (f" {detail}." if detail else "")), linked(words.formula or "-")


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"
