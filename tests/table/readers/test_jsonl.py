"""Records of JSON lines: positions in messages, truncated files, NaN and infinities."""

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.errors import RcdiagError
from rcdiag.table.readers import jsonl, peek


class Record(msgspec.Struct):
    ids: list[jsonl.Id] | None = None
    numbers: list[float] | None = None
    inner: list[list[float]] | None = None
    mask: list[jsonl.Bit] | None = None
    name: str | None = None


def read(tmp_path: Path, content: bytes | str) -> list[tuple[int, Record]]:
    file = tmp_path / "records.jsonl"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [(number, record) for _, number, record in jsonl.records(file, Record)]


def refusal(tmp_path: Path, content: bytes | str) -> str:
    with pytest.raises(RcdiagError) as caught:
        read(tmp_path, content)
    assert caught.value.hint
    return str(caught.value)


def test_bare_nan_and_infinity_are_read(tmp_path):
    (_, record), (_, other) = read(
        tmp_path, '{"numbers": [NaN, Infinity, -Infinity, 1]}\n{"numbers": [2.5]}\n'
    )
    assert math.isnan(record.numbers[0])
    assert record.numbers[1:] == [math.inf, -math.inf, 1.0]
    assert other.numbers == [2.5]


def test_lines_are_counted_from_one_and_blank_ones_too(tmp_path):
    numbers = [number for number, _ in read(tmp_path, '\n{"ids": [1]}\n  \n{"ids": [2]}')]
    assert numbers == [2, 4]


def test_a_list_in_a_line_is_several_records(tmp_path):
    assert [(n, r.ids) for n, r in read(tmp_path, '[{"ids": [1]}, {"ids": [2]}]\n')] == [
        (1, [1]),
        (1, [2]),
    ]


def test_one_record_over_several_lines(tmp_path):
    text = json.dumps([{"ids": [7, 8]}, {"numbers": [math.nan]}], indent=2)
    (_, first), (_, second) = read(tmp_path, text)
    assert first.ids == [7, 8]
    assert math.isnan(second.numbers[0])


def test_fields_that_are_not_read_may_hold_anything(tmp_path):
    assert read(tmp_path, '{"text": "\\ud800", "x": NaN, "ids": [3]}\n')[0][1].ids == [3]


def test_a_lone_surrogate_is_refused(tmp_path):
    (_, record), (_, other) = read(
        tmp_path, r'{"name": "a\ud800"}' + "\n" + r'{"name": "\ud83d\ude00"}'
    )
    assert record.name == "a?"
    assert other.name == "\N{GRINNING FACE}"
    ((_, record),) = read(tmp_path, b'{"name": "a\xed\xa0\x80"}\n')
    assert record.name == "a?"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"ids": [1, "2"]}', "line 2: `ids[1]`: expected int, got str"),
        ('{"ids": [1, null]}', "line 2: `ids[1]`: expected int, got null"),
        ('{"ids": [true]}', "line 2: `ids[0]`: expected int, got bool"),
        ('{"ids": [1.5]}', "line 2: `ids[0]`: expected int, got float"),
        ('{"ids": [NaN]}', "line 2: `ids[0]`: expected int, got float"),
        ('{"ids": [2147483648]}', "line 2: `ids[0]`: expected int <= 2147483647"),
        ('{"ids": [99999999999999999999999]}', "line 2: `ids[0]`: expected int <= 2147483647"),
        ('{"numbers": [0.5, "-0.5"]}', "line 2: `numbers[1]`: expected float, got str"),
        ('{"numbers": [0.5, null, NaN]}', "line 2: `numbers[1]`: expected float, got null"),
        ('{"numbers": [[0.5]]}', "line 2: `numbers[0]`: expected float, got array"),
        ('{"numbers": [true]}', "line 2: `numbers[0]`: expected float, got bool"),
        ('{"numbers": [1%s]}' % ("0" * 400), "line 2: `numbers[0]`: number out of range"),
        ('{"inner": [0.5]}', "line 2: `inner[0]`: expected array, got float"),
        ('{"numbers": "0.5"}', "line 2: `numbers`: expected array"),
        ("7", "line 2: `the record`: expected"),
        ('{"numbers": ' + "[" * 100_000, "line 2"),
        ('{"other": ' + "[" * 100_000 + "]" * 100_000 + "}", "line 2"),
        ('{"numbers": [1] "ids"}', "line 2: not valid JSON"),
        ('{"numbers": [0.5]} {"ids": [1]}', "line 2: not valid JSON (Extra data, character 20)"),
    ],
)
def test_wrong_values_are_refused_with_file_line_and_field(tmp_path, line, message):
    text = refusal(tmp_path, '{"ids": [0]}\n' + line + '\n{"ids": [0]}\n')
    assert "records.jsonl" in text
    assert message in text


def test_a_last_line_that_is_cut_off_is_named(tmp_path):
    text = '{"ids": [1, 2]}\n{"ids": [3, 4]}\n'
    assert "line 2: the last line is cut off" in refusal(tmp_path, text[:-5])
    assert "line 1: the last line is cut off" in refusal(tmp_path, text[:10])
    assert len(read(tmp_path, text[:-1])) == 2


def test_a_binary_file(tmp_path):
    assert "line 2: not valid JSON" in refusal(tmp_path, b'{"ids": [1]}\n{"i\xff\xfe": [1}\n{}\n')
    assert "line 1" in refusal(tmp_path, b"\x00\xff\n\x80\n")


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "LONGEST_RECORD", 1 << 20)
    monkeypatch.setattr(peek, "LONGEST_RECORD", 1 << 20)
    assert "line 2: longer than" in refusal(tmp_path, '{"ids": [1]}\n{"ids": [' + "1," * 600_000)


def test_an_integer_beyond_all_floats_is_not_a_mask():
    with pytest.raises(RcdiagError, match=r"`mask\[1\]` is 1000"):
        jsonl.bits([1, 10**400, 0], "f, line 1", "mask")


def test_a_mask_holds_zeros_and_ones():
    assert jsonl.bits([1, 0, True, False, 1.0], "f, line 1", "mask").tolist() == [1, 0, 1, 0, 1]
    for wrong in (0.5, 2, -1, math.nan):
        with pytest.raises(RcdiagError, match=r"f, line 1: `mask\[1\]`"):
            jsonl.bits([1, wrong], "f, line 1", "mask")


@given(st.lists(st.floats(width=32)))
def test_float32_numbers_survive(values):
    parsed = json.loads(json.dumps([float(np.float32(value)) for value in values]))
    assert np.array_equal(jsonl.floats(parsed), np.array(values, np.float32), equal_nan=True)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["ids", "numbers", "inner", "mask", "x"]), values))
def test_any_record_is_read_or_refused(tmp_path_factory, record):
    text = read_or_refuse(tmp_path_factory.getbasetemp(), json.dumps(record))
    assert text is None or "records.jsonl, line 1" in text


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    text = read_or_refuse(tmp_path_factory.getbasetemp(), content)
    assert text is None or "records.jsonl, line" in text


def read_or_refuse(folder: Path, content: bytes | str) -> str | None:
    try:
        read(folder, content)
    except RcdiagError as error:
        return str(error)
    return None
