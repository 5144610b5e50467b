"""Documents in a page are packed by column, and restored exactly."""

from __future__ import annotations

import json
import random

import pytest

from rcdiag.pages.packing import FEWEST_ROWS, packed, packed_document
from rcdiag.pages.page import page
from rcdiag.results import to_json, to_plain
from tests.pages.browser import visit
from tests.pages.makers import replayed
from tests.pages.unpacked import unpacked


def compact(text: str) -> str:
    """Remove white space from a JSON document; numbers keep all digits."""
    return json.dumps(json.loads(text), separators=(",", ":"))


def joined(letters: str) -> str:
    """Restore a packed document as the page's script does."""
    stored = json.loads(unpacked(letters))

    def rows(table) -> str:
        cells = [stored["columns"][place].split("\n") for place in table["columns"]]
        lines = zip(*cells, strict=True)
        ends = table["between"]
        return ",".join(
            "".join(text + value for text, value in zip(ends, [*line, ""], strict=True))
            for line in lines
        )

    return "".join(piece if isinstance(piece, str) else rows(piece) for piece in stored["pieces"])


ROWS = [{"value": 1.0, "low": None, "of": [place, 1e-05]} for place in range(FEWEST_ROWS)]


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        "NaN",
        {"rows": ROWS, "big": 2**60 + 1, "text": 'a "quoted"\nline\u2028'},
        {f'name "{place}"': row for place, row in enumerate(ROWS)},
        [*ROWS, {"value": 2.0}],
        {"long": [place / 7 for place in range(50)], "empty": [[], {}]},
        [[] for _ in range(50)],
        ["one\ntwo", None, True] * 9,
    ],
    ids=str,
)
def test_a_document_is_restored_exactly(document):
    text = json.dumps(document, indent=1)
    assert joined(packed_document(json.loads(text))) == compact(text)


def test_a_result_is_restored_exactly_and_is_smaller_when_packed():
    result = replayed()
    text = to_json(result)
    letters = packed_document(to_plain(result))
    assert joined(letters) == compact(text)
    assert len(letters) < 0.85 * len(packed(compact(text)))


@pytest.mark.parametrize("size", range(40, 48))
def test_packed_text_has_no_characters_special_in_html(size):
    """Random hexadecimal digits, which gzip compresses to arbitrary bytes."""
    text = "".join(random.Random(size).choices("0123456789abcdef", k=100 * size))
    letters = packed(text)
    assert unpacked(letters) == text
    assert not set(letters) & set("<>&\"'/\\ \n")


def test_equal_columns_are_stored_once():
    columns = {name: [{"value": place / 7} for place in range(20)] for name in "abc"}
    stored = json.loads(unpacked(packed_document(columns)))
    assert len(stored["columns"]) == 1
    assert joined(packed_document(columns)) == compact(json.dumps(columns))


@pytest.mark.browser
def test_the_script_restores_a_document_exactly(browser, tmp_path):
    result = replayed()
    file = tmp_path / "page.html"
    file.write_text(page(result))
    seen = visit(browser, file)
    assert seen.page.evaluate("name => textOf(name)", "replay") == compact(to_json(result))
    seen.close()


@pytest.mark.browser
def test_the_script_unpacks_texts_of_any_length(browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page(replayed()))
    seen = visit(browser, file)
    texts = ["", *("x\u2028é" * count for count in range(1, 12))]
    for text in texts:
        assert seen.page.evaluate("letters => unpack(letters)", packed(text)) == text
    seen.close()
