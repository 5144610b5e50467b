"""Pickles and torch files are read exactly, and nothing that they name is executed."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rcdiag.errors import RcdiagError
from rcdiag.table.opening import open_table
from rcdiag.table.readers.safe import (
    Foreign,
    Jagged,
    StoredTensor,
    foreign,
    load_pickle,
    load_torch,
)
from rcdiag.table.readers.safe.content import Content
from tests.table.readers.pickled import (
    MODULE,
    Built,
    Named,
    consolidated,
    pickled,
    stacked,
    tensordict,
    torch_bytes,
    write,
)
from tests.table.readers.rollouts import rollouts
from tests.table.readers.verl_batches import FORMS, data_proto, queue_batch, write_batch

PROTOCOLS = (2, 3, 4, 5)


def content(data: bytes) -> Content:
    return Content("dump.pkl", memoryview(data))


def unpickled(data: bytes, **names: Any) -> Any:
    return load_pickle(content(data), **names)


def loaded(data: bytes, **options: Any) -> Any:
    return load_torch(content(data), **options)


# Accepted content


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pickle_of_plain_values_and_arrays_is_read_as_pickle_reads_it(protocol):
    objects = np.empty(3, object)
    objects[:] = ["text", None, {"key": [1, 2.5, True]}]
    shared = np.arange(5)
    value = {
        "numbers": [0, -1, 255, 256, 65_536, -(2**31), 2**40, -(2**70), 1.5, float("inf")],
        "long lists": [list(range(5_000)), [float(x) / 3 for x in range(3_000)]],
        "text": ["", "é漢\U0001f600", "x" * 70_000],
        "bytes": [b"", b"\x00\xff", b"ab" * 10],
        "nested": ({"a": (1, (2, ()))}, {1, 2}, frozenset([3])),
        "constants": [None, True, False],
        "ordered": OrderedDict(a=1),
        "scalar": np.float32(2.5),
        (1, "tuple"): "key",
    }
    arrays: dict[str, Any] = {
        "shared": [shared, shared],
        "objects": objects,
        "big endian": np.arange(4, dtype=">i4"),
        "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "none": np.zeros((0, 4), np.float32),
        "bool": np.array([True, False]),
        "text": np.array(["ab", "c"]),
        "half": np.arange(3, dtype=np.float16),
    }
    assert unpickled(pickle.dumps(value, protocol)) == value
    data = pickle.dumps(arrays, protocol)
    back, as_pickle = unpickled(data), pickle.loads(data)  # which swaps bytes up to protocol 4
    assert back["shared"][0] is back["shared"][1]
    for name in set(arrays) - {"shared"}:
        assert back[name].dtype == as_pickle[name].dtype
        np.testing.assert_array_equal(back[name], arrays[name])
    np.testing.assert_array_equal(back["shared"][0], shared)


@pytest.mark.parametrize(
    "kind",
    [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16,
    ],
)  # fmt: skip
def test_tensors_of_every_kind_and_stride_are_read_exactly(kind):
    tensor = (torch.randn(6, 4) * 50).abs().to(kind)
    value = {
        "whole": tensor,
        "transposed": tensor.t(),
        "part": tensor[2:5, 1:3],
        "repeated": tensor[:, :1].expand(6, 9),
        "empty": tensor[:0],
        "scalar": tensor[0, 0],
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    back = loaded(torch_bytes(value))
    for name, expected in value.items():
        assert isinstance(back[name], StoredTensor)
        result = back[name].numpy()
        expected = expected.detach()
        expected = expected.float() if kind == torch.bfloat16 else expected
        assert result.dtype == expected.numpy().dtype
        np.testing.assert_array_equal(result, expected.numpy())


def test_a_file_of_the_other_byte_order_is_read():
    data = torch_bytes({"a": torch.arange(3)})
    members = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            members[info.filename] = archive.read(info)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, part in members.items():
            if name.endswith("byteorder"):
                part = b"big"
            if name.endswith("data/0"):
                part = np.arange(3, dtype=">i8").tobytes()
            archive.writestr(name, part)
    assert loaded(stream.getvalue())["a"].numpy().tolist() == [0, 1, 2]


def long_lists() -> dict[str, Any]:
    """Make lists of one type of number, with lengths at which Python's pickle changes opcodes."""
    random = np.random.default_rng(0)
    lists: dict[str, Any] = {}
    for count in (1, 63, 64, 999, 1000, 1001, 2000, 2500):
        lists[f"floats {count}"] = random.normal(size=count).tolist()
        for name, most in (("small", 256), ("ids", 32_000), ("wide", 2**31 - 1)):
            lists[f"{name} {count}"] = random.integers(0, most, count).tolist()
        lists[f"one byte, one instruction {count}"] = [ord("K")] * count
        lists[f"one word, one instruction {count}"] = [int.from_bytes(b"MM", "little")] * count
        lists[f"floats that read as instructions {count}"] = [struct.unpack(">d", b"G" * 8)[0]]
    lists["below zero"] = (-random.integers(0, 9, 100)).tolist()
    return lists


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_long_lists_of_numbers_are_read_exactly(protocol):
    given = long_lists()
    assert loaded(torch_saved(given, protocol)) == given


def mixed_lists() -> dict[str, list[Any]]:
    numbers = list(range(1000))
    return {
        "whole and not": [*numbers, 0.5],
        "another kind in the next thousand": [*numbers, *np.arange(1000).astype(float).tolist()],
        "with None": [None, *numbers],
        "None later": [*numbers, *numbers, None],
        "truth values": [True] * 1000,
        "beyond 32 bits": [2**40] * 1000,
        "a text behind": [*numbers, "text"],
        "a list behind": [*numbers, [1, 2]],
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", mixed_lists())
def test_a_list_of_more_than_one_kind_of_number_is_read_exactly(name, protocol):
    given = {"values": mixed_lists()[name], "next": (1, 2)}
    assert loaded(torch_saved(given, protocol)) == given
    with_python = torch_saved(given, protocol, pickle._dumps, pickle._Pickler)
    assert loaded(with_python) == given


def test_a_list_that_two_fields_share_is_one_list():
    shared = list(range(100))
    held = loaded(torch_saved({"one": shared, "two": [shared, shared]}, 2))
    assert held["one"] is held["two"][0] is held["two"][1]


def torch_saved(value: Any, protocol: int, dumps: Any = None, pickler: Any = None) -> bytes:
    stream = io.BytesIO()
    module = SimpleNamespace(
        __name__="pickle", Pickler=pickler or pickle.Pickler, dumps=dumps or pickle.dumps
    )
    torch.save(value, stream, pickle_module=module, pickle_protocol=protocol)
    return stream.getvalue()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_thousands_of_tensors_of_one_dimension_are_read_as_torch_reads_them(protocol):
    torch.manual_seed(0)
    kinds = (torch.float32, torch.int64, torch.bfloat16, torch.int32, torch.uint8)
    storage = torch.arange(5000.0)
    tensors = {
        f"{number}": (torch.rand(number % 300) * 9).to(kinds[number % len(kinds)])
        for number in range(600)
    }
    tensors |= {f"view {start}": storage[start : start + 70] for start in range(0, 4000, 131)}
    tensors["whole"] = storage
    tensors["every other"] = storage[::2]
    tensors["matrix"] = storage.view(50, 100)
    tensors["again"] = tensors["7"]
    trained = torch.ones(3, requires_grad=True)
    data = torch_saved({**tensors, "trained": trained, "end": "end"}, protocol)
    held = loaded(data)
    assert held["again"] is held["7"]
    assert held["end"] == "end"
    assert held["trained"].numpy().tolist() == [1, 1, 1]
    for name, tensor in tensors.items():
        assert held[name].kind == str(tensor.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(held[name].numpy(), tensor.to(torch.float64).numpy(), name)


@pytest.mark.parametrize("lie", ["key", "count", "offset", "size", "place"])
def test_one_invalid_tensor_among_thousands_is_refused(lie):
    """The last of many tensors, which are recognised by a pattern, gets an invalid size."""
    data = torch_saved([torch.arange(1000, 1070) for _ in range(400)], 2)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    root = next(name for name in members if name.endswith("data.pkl"))
    before, _, last = members[root].rpartition(b"((h")
    count = b"K\x46"
    assert last.count(count) == 2
    at = {"count": last.index(count), "size": last.rindex(count)}
    lies = {
        "key": last.replace(b"\x03\0\0\x00399", b"\x03\0\0\x00999"),
        "count": last[: at["count"]] + b"K\x47" + last[at["count"] + 2 :],
        "offset": last.replace(b"QK\0", b"QK\x01"),
        "size": last[: at["size"]] + b"K\x47" + last[at["size"] + 2 :],
        "place": b"\xff" + last[1:],
    }
    assert lies[lie] != last
    members[root] = before + b"((h" + lies[lie]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    with pytest.raises(RcdiagError, match="damaged"):
        loaded(stream.getvalue())


def test_a_tensordict_is_a_dict_in_either_form():
    tensors = {"a": torch.arange(6).reshape(2, 3), "b": torch.ones(2, 5, dtype=torch.bfloat16)}
    for form in (consolidated, tensordict):
        back = loaded(torch_bytes(form(tensors)))
        assert back["a"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert back["b"].numpy().tolist() == [[1.0] * 5] * 2
    assert loaded(torch_bytes(tensordict({"s": stacked(["x", None])})))["s"] == ["x", None]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_read_row_by_row(layout):
    rows = [torch.arange(3), torch.arange(0), torch.arange(5) + 10]
    nested = torch.nested.as_nested_tensor(rows, layout=layout)
    back = loaded(torch_bytes({"a": nested}))["a"]
    assert isinstance(back, Jagged)
    assert [back.row(row).numpy().tolist() for row in range(3)] == [row.tolist() for row in rows]
    assert back.numpy(slice(1, 3)).tolist() == [10, 11, 12, 13, 14]
    assert back.numpy(np.array([2, 0])).tolist() == [10, 11, 12, 13, 14, 0, 1, 2]


def test_objects_of_a_trainer_are_kept_without_being_loaded():
    value = Built(Named("a.b", "Thing"), (1,), {"state": [2]})
    thing = unpickled(pickled(value), names=foreign([("a.b", "Thing")]))
    assert isinstance(thing, Foreign)
    assert (thing.name, thing.arguments, thing.state) == ("a.b.Thing", (1,), {"state": [2]})


# Refused content


def call(module: str, name: str, *arguments: Any) -> Built:
    return Built(Named(module, name), arguments)


HOSTILE = {
    "system": lambda mark: call("os", "system", f"touch {mark}"),
    "posix": lambda mark: call("posix", "system", f"touch {mark}"),
    "eval": lambda mark: call("builtins", "eval", f"open({str(mark)!r}, 'w')"),
    "exec": lambda mark: call("__builtin__", "exec", f"open({str(mark)!r}, 'w')"),
    "open": lambda mark: call("io", "open", str(mark), "w"),
    "numpy": lambda mark: call(
        "numpy.testing._private.utils", "runstring", f"open({str(mark)!r}, 'w')", {}
    ),
    "torch": lambda mark: call("torch.utils.collect_env", "run", f"touch {mark}"),
    "getattr": lambda mark: call(
        "builtins", "getattr", call("builtins", "__import__", "os"), "system"
    ),
    "dotted": lambda mark: call("collections", "OrderedDict.__init__.__globals__", str(mark)),
    "torch.load": lambda mark: call("torch.serialization", "load", str(mark)),
    "attrgetter": lambda mark: call("operator", "attrgetter", "system"),
    "partial": lambda mark: call("functools", "partial", Named("os", "system"), str(mark)),
    "class": lambda mark: Built(Named("subprocess", "Popen"), (["touch", str(mark)],)),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_file_runs_nothing_and_is_refused_by_name(attack, protocol, tmp_path):
    mark = tmp_path / "mark"
    value = HOSTILE[attack](mark)
    inner = torch_bytes(value)
    good = torch_bytes(consolidated({"responses": torch.ones(2, 3)}))
    files = {
        "plain.pkl": pickled(value, protocol),
        "file.pt": inner,
        "proto.dp": pickled(data_proto(inner, {}), protocol),
        "values.dp": pickled(data_proto(good, {"uid": value}), protocol),
        "meta.dp": pickled(data_proto(good, {}, {"config": value}), protocol),
    }
    for name, data in files.items():
        path = write(tmp_path / name, data)
        with pytest.raises(RcdiagError, match="which is not among the names") as caught:
            open_table(path, format="verl")
        assert name in caught.value.message
        assert caught.value.hint
    assert not mark.exists()


class Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_real_pickle_that_runs_a_command_is_refused(protocol, tmp_path):
    path = tmp_path / "dump.pkl"
    path.write_bytes(pickle.dumps({"a": Runs(f"touch {tmp_path}/mark")}, protocol))
    with pytest.raises(RcdiagError):
        load_pickle(path)
    torch.save({"a": Runs(f"touch {tmp_path}/mark")}, tmp_path / "dump.pt")
    with pytest.raises(RcdiagError, match=r"(os|posix)\.system"):
        load_torch(tmp_path / "dump.pt")
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "target",
    [
        Named("collections", "OrderedDict"),
        Named("torch._utils", "_rebuild_tensor_v2"),
        Named("numpy", "ndarray"),
        Named("verl.protocol", "DataProto"),
    ],
)
@pytest.mark.parametrize("state", [{"build": "x"}, (None, {"call": "x"}), {"__class__": 1}])
def test_a_state_for_a_name_changes_nothing(target, state):
    data = b"\x80\x04" + pickled(target)[2:-1] + pickled(state)[2:-1] + b"b."
    names = foreign([("verl.protocol", "DataProto")])
    with pytest.raises(RcdiagError):
        unpickled(data, names=names)
    assert unpickled(pickle.dumps(OrderedDict(a=1), 2)) == {"a": 1}


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(3),
        np.arange(3),
        np.dtype("f4"),
        torch.float32,
        np.array([None]),
        torch.nested.as_nested_tensor([torch.arange(3)], layout=torch.jagged),
    ],
    ids=["tensor", "array", "element type", "kind", "objects", "jagged"],
)
@pytest.mark.parametrize(
    "state", [{"stored": 1}, ["x", "y"], (1, (9,), np.dtype("O"), False, [1] * 9)]
)
def test_a_second_state_for_a_value_changes_nothing(value, state):
    """A second state for an array that another one views would free its bytes."""
    # A second state: pickle's BUILD after the one in the value's own pickle.
    stream = io.BytesIO()
    torch.save(value, stream, pickle_module=MODULE)
    with zipfile.ZipFile(stream) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = next(name for name in members if name.endswith("data.pkl"))
    members[name] = members[name][:-1] + pickled(state, 2)[2:-1] + b"b."
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for member, content_of in members.items():
            archive.writestr(member, content_of)
    with pytest.raises(RcdiagError):
        loaded(changed.getvalue())


def rebuilt(tensor: torch.Tensor, offset: Any, size: Any, stride: Any) -> Built:
    """Return a tensor that claims this offset, size and stride in its storage."""
    hooks: dict[str, Any] = OrderedDict()
    arguments = (tensor._typed_storage(), offset, size, stride, False, hooks)
    return Built(Named("torch._utils", "_rebuild_tensor_v2"), arguments)


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (1000,), (1,)),
        (5, (6,), (1,)),
        (0, (2, 2), (9, 1)),
        (-1, (3,), (1,)),
        (0, (-3,), (1,)),
        (9, (3,), (-1,)),
        (0, (3, 3), (1,)),
        (0, (10**12, 10**12), (0, 0)),
        (0, (10**12,), (0,)),
        (2**63, (1,), (1,)),
        (0, (2**62, 4), (0, 0)),
        ("0", (3,), (1,)),
        (0, (3.0,), (1,)),
        (0, None, None),
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(offset, size, stride):
    with pytest.raises(RcdiagError):
        loaded(torch_bytes({"a": rebuilt(torch.arange(10), offset, size, stride)}))


@pytest.mark.parametrize(
    "leaf",
    [
        ("torch.int64", [100], 0, 80, 0),
        ("torch.int64", [10], 0, 800, 0),
        ("torch.int64", [10], 80, 0, 0),
        ("torch.int64", [10], -80, 80, 0),
        ("torch.int64", [-1], 0, 80, 0),
        ("torch.object", [10], 0, 80, 0),
        ("torch.int64", [10], 0, 79, 0),
        ("torch.int64", 10**30, 0, 80, 0),
        (None, None, None, None, None),
    ],
)
def test_a_consolidated_tensor_beyond_its_storage_is_refused(leaf):
    value = consolidated({"a": torch.arange(10)})
    metadata, _ = value.parts[1]
    metadata["leaves"]["a"] = leaf
    with pytest.raises(RcdiagError):
        loaded(torch_bytes(value))


def array_state(shape: tuple, code: str, raw: Any) -> Built:
    kind = Built(
        Named("numpy", "dtype"), (code, False, True), (3, "<", None, None, None, -1, -1, 0)
    )
    make = Named("numpy._core.multiarray", "_reconstruct")
    return Built(make, (Named("numpy", "ndarray"), (0,), b"b"), (1, shape, kind, False, raw))


@pytest.mark.parametrize(
    ("shape", "code", "raw"),
    [
        ((3,), "O8", b"\x01" * 24),
        ((100,), "i8", b"\x01" * 24),
        ((-3,), "i8", b"\x01" * 24),
        ((3,), "O8", [1]),
        ((10**15,), "U0", b""),
        ((2**20,), "U0", b""),
        ((2**40, 2**40), "i8", b""),
        ((3,), "i8", "text"),
    ],
)
def test_an_array_with_a_wrong_shape_is_refused(shape, code, raw):
    with pytest.raises(RcdiagError):
        unpickled(pickled(array_state(shape, code, raw)))


def tower(depth: int) -> bytes:
    """Return a pickle whose dict key is a tuple that takes 2 ** depth steps to hash."""
    return b"\x80\x04}(K\x01\x85" + b"2\x86" * depth + b"K\x01u."


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04Nr\xff\xff\xff\xff0.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffx.",
        b"\x80\x04\x8b\xff\xff\xff\x7f" + b"\x01" * 4096,
        b"\x80\x04\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
        tower(60),
        b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".",
        b"\x80\x04" + b"(" * 200_000 + b".",
        b"\x80\x04" + b"]\x94" + b"h\x00" * 100_000 + b".",
        b"\x80\x04I" + b"9" * 100_000 + b"\n.",
        b"\x80\x04N.N.",
        b"\x80\x09N.",
        b"\x80\x04",
        b"\x80",
        b"K",
        b"\x80\x04h\x05.",
        b"\x80\x04Q.",
        b"\x80\x04\x82\x01.",
        b"",
    ],
)
def test_a_pickle_with_huge_or_invalid_sizes_takes_no_memory(data):
    tracemalloc.start()
    with contextlib.suppress(RcdiagError):
        unpickled(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6


def tuples(levels: int, *, shared: bool) -> bytes:
    """Return a pickle of a dict whose key is (((...), (...)), ((...), (...))) or (((...),),)."""
    if not shared:
        return b"\x80\x04})" + b"\x85" * levels + b"K\x01s."
    level = b"".join(b"h%c\x86\x94" % number for number in range(levels))
    return b"\x80\x04}K\x01\x85\x94" + level + b"K\x01s."


SHARED_KEY = b"\x80\x04}K\x01\x85\x85\x94K\x01s."


@pytest.mark.parametrize(
    "data",
    [
        tuples(60, shared=True),
        tuples(500_000, shared=False),
        SHARED_KEY,
        b"\x80\x04}(K\x01" + b"\x85\x85K\x01u.",
        b"\x80\x04\x8f(K\x01\x85\x85\x90.",
        b"\x80\x04(K\x01\x85\x85\x91.",
        b"\x80\x04cbuiltins\nset\n](K\x01\x85\x85e\x85R.",
        b"\x80\x04cbuiltins\ntuple\n](K\x01\x85\x85e\x85R.",
        b"\x80\x04}ctorch._utils\n_rebuild_parameter\nK\x01\x85\x85\x85RK\x01s.",
        b"\x80\x04}ctorch._utils\n_rebuild_parameter\nK\x01\x85\x85\x85}\x92K\x01s.",
    ],
)
def test_a_key_whose_hash_takes_forever_is_refused_before_it_is_hashed(data):
    with pytest.raises(RcdiagError):
        unpickled(data)


@pytest.mark.parametrize("put", [b"q\xff", b"r\xff\xff\xff\x7f", b"r\x02\0\0\0"])
def test_a_huge_memo_index_is_refused(put):
    with pytest.raises(RcdiagError, match="memo entry"):
        unpickled(b"\x80\x02]" + put + b".")


@pytest.mark.parametrize("code", [b"\x82\x01", b"\x83\x01\0", b"\x84\x01\0\0\0"])
def test_the_registry_of_extensions_is_never_used(code):
    with pytest.raises(RcdiagError, match="unknown protocol"):
        unpickled(b"\x80\x04" + code + b")R.")


def test_lists_that_expand_to_billions_are_refused_and_shared_ones_read():
    laugh: Any = list(range(10))
    for _ in range(9):
        laugh = [laugh] * 10
    with pytest.raises(RcdiagError, match="billions"):
        unpickled(pickle.dumps({"tokens": laugh}, 4))
    from_above: list[list[Any]] = [[] for _ in range(10)]
    for outer, inner in itertools.pairwise(from_above):
        outer += [inner] * 10
    with pytest.raises(RcdiagError, match="billions"):
        unpickled(pickle.dumps({"inner first": from_above[::-1], "tokens": from_above[0]}, 4))
    prompt = list(range(1_000))
    samples = {"samples": [{"tokens": prompt} for _ in range(64)]}
    assert unpickled(pickle.dumps(samples, 4)) == samples
    around: list[Any] = []
    around.append(around)
    with pytest.raises(RcdiagError, match="contains itself"):
        unpickled(pickle.dumps(around, 4))


def test_a_pickle_of_too_many_values_is_refused(monkeypatch):
    from rcdiag.table.readers.safe import instructions

    sets = b"\x80\x04](" + b"\x8f" * 1_000 + b"e."
    assert len(unpickled(sets)) == 1_000
    monkeypatch.setattr(instructions, "MOST_INSTRUCTIONS", 900)
    with pytest.raises(RcdiagError, match="more than 900 values") as caught:
        unpickled(sets)
    assert "tensors or arrays" in caught.value.hint
    monkeypatch.setattr(instructions, "MOST_BYTES_OF_NUMBERS", 1_000)
    with pytest.raises(RcdiagError, match="GB of numbers"):
        unpickled(pickle.dumps(list(range(600)), 2))


def repacked(data: bytes, compression: int, drop: str = "") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for info in old.infolist():
            if not drop or not info.filename.endswith(drop):
                new.writestr(info.filename, old.read(info), compression)
    return stream.getvalue()


def test_archives_that_torch_does_not_write_are_refused():
    data = torch_bytes({"a": torch.arange(100)})
    assert loaded(repacked(data, zipfile.ZIP_STORED))["a"].shape == (100,)
    changed = bytearray(data)
    changed[changed.index(np.arange(100).tobytes()) + 8] ^= 1
    for broken, how in (
        (repacked(data, zipfile.ZIP_DEFLATED), "is not stored as"),
        (repacked(data, zipfile.ZIP_STORED, "data.pkl"), "one data.pkl"),
        (repacked(data, zipfile.ZIP_STORED, "data/0"), "data/0 is missing"),
        (data[: len(data) // 2], "not a zip archive"),
        (bytes(changed), "does not match its bytes"),
        (b"PK\x03\x04" + bytes(100), "not a zip archive"),
    ):
        with pytest.raises(RcdiagError, match=how):
            loaded(broken)


def test_a_file_of_the_old_layout_is_refused_with_a_hint(tmp_path):
    path = tmp_path / "old.pt"
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(RcdiagError, match="format of torch before") as caught:
        load_torch(path)
    assert "torch.load" in caught.value.hint


def test_a_member_that_reaches_beyond_the_file_is_refused():
    data = bytearray(torch_bytes({"a": torch.arange(100)}))
    at = data.index(b"PK\x01\x02")
    while at >= 0:
        name = data[at + 46 : at + 46 + struct.unpack("<H", data[at + 28 : at + 30])[0]]
        if name.endswith(b"data/0"):
            data[at + 20 : at + 28] = struct.pack("<II", 1 << 30, 1 << 30)
        at = data.find(b"PK\x01\x02", at + 1)
    with pytest.raises(RcdiagError):
        loaded(bytes(data))


# Damage of any kind


def bases() -> dict[str, bytes]:
    """Return small files of every form, without checksums, which would detect all damage."""
    from tests.table.readers.verl_batches import tensors_of, values_of

    batch = rollouts(4)
    torch.serialization.set_crc32_options(False)
    try:
        made = {form: FORMS[form](tensors_of(batch), values_of(batch)) for form in FORMS}
        made["queue"] = torch_bytes(queue_batch(batch.but_for(0)))
    finally:
        torch.serialization.set_crc32_options(True)
    return made


BASES = bases()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    form=st.sampled_from(sorted(BASES)),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=4),
    cut=st.one_of(st.none(), st.floats(0, 1)),
)
def test_a_damaged_file_is_read_or_refused_but_never_crashes(tmp_path_factory, form, flips, cut):
    data = bytearray(BASES[form])
    for place, flip in flips:
        data[int(place * (len(data) - 1))] ^= flip
    path = tmp_path_factory.mktemp("fuzz") / "dump.dp"
    path.write_bytes(data[: int(cut * len(data))] if cut else data)
    error = None
    try:
        open_table(path, format="verl")
    except RcdiagError as refusal:
        error = refusal
    assert error is None or "dump.dp" in error.message


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=200))
def test_any_opcodes_are_read_or_refused(data):
    for begin in (b"\x80\x04", b"\x80\x04}(", b"\x80\x04cverl.protocol\nDataProto\n)\x81"):
        with contextlib.suppress(RcdiagError):
            unpickled(begin + data + b".", names=foreign([("verl.protocol", "DataProto")]))


def test_the_damaged_file_of_a_folder_is_named(tmp_path):
    write_batch(tmp_path / "a.dp", rollouts())
    path = write_batch(tmp_path / "b.dp", rollouts())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RcdiagError, match=r"b\.dp: damaged or truncated"):
        open_table(tmp_path)
