"""Peeking into a pickle finds the same names, texts and numbers as Python's pickletools."""

from __future__ import annotations

import pickle
import pickletools
import struct
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.safe.instructions import number_behind, scanned
from rcdiag.table.sources import find_files
from tests.table.readers.pickled import Built, Named, pickled, torch_bytes

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(max_size=80),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(max_size=9), inner) | st.tuples(inner, inner)
    ),
)


def told_by_python(data: bytes) -> list[tuple[str, str]]:
    """Return names and short texts as pickletools reads them."""
    found: list[tuple[str, str]] = []
    try:
        for code, argument, _ in pickletools.genops(data):
            if code.name == "GLOBAL":
                found.append(("name", argument.replace(" ", ".")))
            elif isinstance(argument, str) and len(argument) <= 64:
                found.append(("text", argument))
    except ValueError:  # the pickle is truncated
        pass
    return found


@given(VALUES, st.sampled_from([2, 3, 4, 5]), st.floats(0, 1))
def test_names_and_texts_are_those_that_python_finds(value, protocol, cut):
    data = pickled([Built(Named("verl.protocol", "DataProto"), (value,)), value], protocol)
    part = data[: int(cut * len(data))]
    assert list(scanned(data)) == told_by_python(data)
    assert list(scanned(part)) == told_by_python(part)


def test_a_name_on_the_stack_is_one():
    held = list(scanned(pickle.dumps(struct.Struct, protocol=4)))
    assert held[-1] == ("name", "_struct.Struct")


@pytest.mark.parametrize("number", [0, 255, 256, 70_000, -3])
@pytest.mark.parametrize("protocol", [2, 4])
def test_the_number_behind_a_key(number, protocol):
    data = pickle.dumps({"rollout": "id", "id": None, "rollout_id": number, "n": 5}, protocol)
    assert number_behind(data, "rollout_id") == number
    assert number_behind(data, "id") is None
    assert number_behind(data, "other") is None


def test_the_pickle_of_a_torch_file_is_found_in_its_head(tmp_path):
    path = tmp_path / "7.pt"
    path.write_bytes(torch_bytes({"rollout_id": 7, "samples": [torch.zeros(3)] * 2}))
    assert Peek(path).is_torch_file
    assert Peek(path).pickle_number("rollout_id") == 7
    assert {"rollout_id", "samples"} <= Peek(path).pickle_words


def test_a_truncated_or_other_archive_is_not_a_torch_file(tmp_path):
    whole = torch_bytes({"rollout_id": 7, "samples": [torch.zeros(9999)]})
    cut, other = tmp_path / "cut.pt", tmp_path / "other.zip"
    cut.write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme.txt", "no pickle")
    assert not Peek(cut).is_torch_file
    assert not Peek(other).is_torch_file


def test_an_archive_that_claims_to_span_disks_is_not_a_torch_file(tmp_path):
    """With such damage Python's zipfile raises even in is_zipfile."""
    whole = torch_bytes({"rollout_id": 7})
    claim = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 2)  # the directory is on the second of two
    path = tmp_path / "7.pt"
    path.write_bytes(whole[:-22] + claim + whole[-22:])
    with pytest.raises(zipfile.BadZipFile):
        zipfile.is_zipfile(path)
    assert not Peek(path).is_torch_file
    with pytest.raises(RcdiagError, match="truncated or damaged"):
        find_files(str(path))
