"""The texts of causes are complete, and the names in them exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from urllib.parse import urlsplit

import pytest

from rcdiag.diagnosis.causes.cause_words import (
    FAMILIES,
    PLACES,
    SIDES,
    VERDICTS,
    WORDS,
    cause_words,
)

TABLES = {
    (path.stem, slug): table
    for path in sorted(WORDS.glob("*.toml"))
    for slug, table in tomllib.loads(path.read_text("utf-8")).items()
}
UMBRELLAS = {slug for family, slug in TABLES if family == "umbrellas"}
SLUGS = {slug for _, slug in TABLES}


def test_every_file_is_a_family_and_slugs_are_unique():
    assert {path.stem for path in WORDS.glob("*.toml")} == set(FAMILIES)
    assert len(SLUGS) == len(TABLES) >= 80
    assert list(cause_words()) == [
        slug for family in FAMILIES for in_family, slug in TABLES if in_family == family
    ]


def test_texts_and_choices_of_a_table():
    for (_, slug), table in TABLES.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
        for key in ("title", "says", "shows", "told_apart"):
            assert table[key].strip() == table[key] != "", slug
            assert "\n" not in table[key], slug
        assert table["side"] in SIDES, slug
        assert table["verdict"] in VERDICTS, slug


def test_texts_are_within_their_lengths():
    for (_, slug), table in TABLES.items():
        assert len(table["title"]) <= 60, slug
        assert not table["title"].endswith("."), slug
        assert 1 <= len(table["mend"]) <= 3, slug
        assert all(0 < len(line) <= 100 for line in table["mend"]), slug
        assert 1 <= len(re.findall(r"\.(?= |$)", table["says"])) <= 4, slug
        assert table["says"].endswith("."), slug


def test_names_in_texts_exist():
    for (_, slug), table in TABLES.items():
        assert set(table.get("umbrella", ())) <= UMBRELLAS, slug
        for key in ("umbrella", "look_alikes"):
            others = table.get(key, ())
            assert set(others) <= SLUGS - {slug}, slug
            assert len(set(others)) == len(others), slug
        mend_in = table.get("mend_in", {})
        assert mend_in.keys() <= PLACES.keys(), slug
        assert all(mend_in.values()), slug


def test_links_are_complete_and_unique():
    for (_, slug), table in TABLES.items():
        for link in table.get("links", ()):
            assert link.keys() == {"text", "url"}, slug
            assert link["text"], slug
            parts = urlsplit(link["url"])
            assert parts.scheme == "https", slug
            assert parts.netloc, slug
            assert parts.path.strip("/"), slug
        links = table.get("links", ())
        assert len({link["url"] for link in links}) == len(links), slug


def test_backticks_come_in_pairs():
    for (_, slug), table in TABLES.items():
        texts = [table["says"], table["shows"], table["told_apart"], *table["mend"]]
        for text in (*texts, *table.get("mend_in", {}).values()):
            assert text.count("`") % 2 == 0, (slug, text)


def test_no_two_causes_have_one_title():
    titles = [table["title"].lower() for table in TABLES.values()]
    assert len(set(titles)) == len(titles)


def test_most_causes_link_to_a_thread():
    assert sum("links" in table for table in TABLES.values()) >= 35


@pytest.mark.parametrize(
    ("slug", "verdict"),
    [
        ("engine-noise", "guides"),
        ("fp8-weights", "guides"),
        ("dropout-in-trainer", "broken"),
        ("temperature-silent", "broken"),
        ("stale-weights", "correctable"),
        ("reference-as-old", "broken"),
        ("old-after-update", "broken"),
        ("vocab-shard-wrong", "broken"),
        ("rope-theta", "broken"),
        ("sentinel", "broken"),
    ],
)
def test_verdicts_are_broken_only_if_the_record_did_not_sample(slug, verdict):
    assert cause_words()[slug].verdict == verdict


def test_texts_load_without_numpy():
    code = (
        "import sys; from rcdiag.diagnosis.causes.cause_words import cause_words; cause_words()\n"
        "print([name for name in ('numpy', 'polars', 'pyarrow', 'torch') if name in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout == "[]\n"
