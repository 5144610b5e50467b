"""Every part of a result prints in a few lines, and is the same data as without that."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct

from rcdiag.results import KINDS, Finding, from_json
from rcdiag.results.parts import ShortDict, ShortList, short
from tests.results.stored import stored


def within(value: Any) -> Iterator[Any]:
    """Yield a value and everything in it that a user can reach."""
    yield value
    if isinstance(value, Struct):
        inner = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        inner = [*value.values()]
    else:
        inner = [*value] if isinstance(value, list) else []
    for one in inner:
        yield from within(one)


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_of_a_result_prints_short(kind):
    result = from_json(stored(kind), kind)
    parts = [one for one in within(result) if isinstance(one, (Struct, dict, list))]
    assert len(parts) >= 10
    for part in parts:
        assert len(repr(part)) < 1300, type(part)
        assert repr(part).count("\n") < 20


def test_a_long_dictionary_prints_its_size_and_names():
    printed = repr(ShortDict({f"m{place}": place / 7 for place in range(30)})).splitlines()
    assert printed[0] == "30 entries by name"
    assert printed[1] == "  m0: 0"
    assert printed[-1].startswith("  and 25 more: m5, m6, ")


def test_short_lists_and_dictionaries_are_plain_data():
    made = ShortDict({"a": ShortList([*range(30)])})
    plain = {"a": [*range(30)]}
    assert made == plain
    assert json.dumps(made) == json.dumps(plain)
    for again in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert again == plain


def test_a_text_within_a_line_is_cut_at_a_field():
    finding = Finding(slug="s" * 30, severity="note", message="m, " * 60, fix="f" * 60)
    assert short(finding).count("'") % 2 == 0
    assert short(finding).endswith(", ...)")
