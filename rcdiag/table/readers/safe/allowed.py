"""The closed table of names that a pickle may use: module and name, and what rcdiag builds.

A pair that is not in it is refused. A look-up imports nothing, and a call runs only the function
that stands here.
"""

from __future__ import annotations

from typing import Any

from rcdiag.table.readers.safe.arrays import ARRAY_NAMES
from rcdiag.table.readers.safe.stand_ins import (
    Attributed,
    Buffer,
    Call,
    Name,
    Pair,
    foreign,
    hashable,
    names_of,
)
from rcdiag.table.readers.safe.tensordicts import TENSORDICT_NAMES
from rcdiag.table.readers.safe.views import TENSOR_NAMES

# Objects that dumps of multi-modal and agentic runs carry beside their tokens; nobody needs them.
BYSTANDERS = (
    ("PIL.Image", "Image"),
    ("PIL.PngImagePlugin", "PngImageFile"),
    ("PIL.JpegImagePlugin", "JpegImageFile"),
    ("transformers.feature_extraction_utils", "BatchFeature"),
    ("transformers.tokenization_utils_base", "BatchEncoding"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("decimal", "Decimal"),
    ("fractions", "Fraction"),
    ("omegaconf.base", "ContainerMetadata"),
    ("omegaconf.base", "Metadata"),
    ("omegaconf.dictconfig", "DictConfig"),
    ("omegaconf.listconfig", "ListConfig"),
    ("omegaconf.nodes", "AnyNode"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("typing", "Any"),
    ("uuid", "UUID"),
)


def _encode(text: str, encoding: str) -> bytes:
    """Return the bytes that a pickle of protocol 2 writes as text."""
    if encoding != "latin1":
        raise ValueError("an encoding that pickles do not use")
    return text.encode("latin1")


def _set(items: Any = ()) -> set[Any]:
    return set(map(hashable, _list(items)))


def _list(items: Any = ()) -> list[Any]:
    if not isinstance(items, (list, tuple)):
        raise TypeError("items that are no list")
    return list(items)


def _tuple(items: Any = ()) -> tuple[Any, ...]:
    return tuple(map(hashable, _list(items)))


def _dict(pairs: Any = ()) -> Attributed:
    return Attributed((hashable(key), value) for key, value in _list(pairs))


def _default_dict(factory: Any = None) -> Attributed:
    return Attributed()


def _bytes() -> bytes:
    return b""


BUILTINS: tuple[tuple[str, Call], ...] = (
    ("set", _set),
    ("frozenset", _set),
    ("list", _list),
    ("dict", _dict),
    ("tuple", _tuple),
    ("bytes", _bytes),
    ("int", None),
    ("float", None),
    ("str", None),
    ("bool", None),
)
PLAIN_CALLS: list[tuple[Pair, Call]] = [
    (("collections", "OrderedDict"), _dict),
    (("collections", "defaultdict"), _default_dict),
    (("_codecs", "encode"), _encode),
    (("_io", "BytesIO"), Buffer),
]
for _module in ("builtins", "__builtin__"):
    PLAIN_CALLS += [((_module, name), call) for name, call in BUILTINS]

NAMES: dict[Pair, Name] = (
    names_of(PLAIN_CALLS) | ARRAY_NAMES | TENSOR_NAMES | TENSORDICT_NAMES | foreign(BYSTANDERS)
)
