"""Files of JSON lines give one record after the other, with the types that a format declares.

A format declares the fields that it reads as a `msgspec.Struct`; fields that it does not name are
skipped. Floats that Python wrote as bare NaN and Infinity, which JSON does not have, are read too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.columns import BITS, FLOATS, IDS
from rcdiag.table.readers.peek import BYTE_ORDER_MARK, LONGEST_RECORD

# Types of fields. A number is an int or a float; true, text and null are none.
Id = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Bit = int | float | bool

# A file is read in blocks of this many bytes.
BLOCK = 1 << 20

T = TypeVar("T", bound=msgspec.Struct)


def records(file: Path, kind: type[T]) -> Iterator[tuple[str, int, T]]:
    """Yield the records of a file with their place in it, "FILE, line N", and their line from 1.

    A line that holds a list gives one record for each of its elements. A file that is one JSON
    value spread over several lines counts as one line.
    """
    parser = _Parser(file, kind)
    with _open(file) as stream:
        for number, line in _lines(stream, file):
            try:
                values = parser.parse(line, number)
            except _NotOneLine:
                if number > 1:
                    raise _malformed(file, number, line, stream) from None
                values = _whole_file(parser, file, line, stream)
                yield from ((f"{file}, line 1", 1, value) for value in values)
                return
            yield from ((f"{file}, line {number}", number, value) for value in values)


def floats(values: Sequence[float | None]) -> NDArray[np.float32]:
    """Return numbers as float32: null becomes NaN, and what is out of its reach infinite."""
    with np.errstate(over="ignore"):
        return np.array(values, np.float64).astype(FLOATS)


def ids(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, IDS)


def bits(values: list[Bit], where: str, name: str) -> NDArray[np.uint8]:
    """Return a mask of zeros and ones; any other value in it is refused."""
    numbers = np.array(values, np.float64)
    wrong = np.flatnonzero((numbers != 0) & (numbers != 1))
    if len(wrong):
        raise RcdiagError(
            f"{where}: `{name}[{wrong[0]}]` is {values[wrong[0]]}; a mask holds 0 and 1 only",
            hint="a mask of weights is not a mask; was another column written under this name?",
        )
    return numbers.astype(BITS)


def check_length(
    values: list[Any] | NDArray[Any] | None, length: int, where: str, name: str, beside: str
) -> None:
    """Refuse a list that does not have as many values as the list of tokens beside it."""
    if values is not None and len(values) != length:
        raise RcdiagError(
            f"{where}: `{name}` has {len(values)} values, `{beside}` has {length}",
            hint="values and tokens of this row do not belong together; write the dump again",
        )


class _NotOneLine(ValueError):
    """The text of a line is no JSON."""


class _Parser(Generic[T]):
    """Reads the text of one record, or of a list of records, of a file."""

    def __init__(self, file: Path, kind: type[T]) -> None:
        self.file = file
        self.kind: Any = kind | list[kind]  # type: ignore[valid-type]
        self.decoder = msgspec.json.Decoder(self.kind)

    def parse(self, text: bytes, number: int) -> list[T]:
        """Return the records in the text that begins in a line; _NotOneLine where it is no JSON."""
        try:
            value = self._value(text)
        except msgspec.ValidationError as error:
            raise _wrong_type(self.file, number, error) from error
        except RecursionError as error:
            raise RcdiagError(
                f"{self.file}, line {number}: lists or objects are nested too deeply to be read",
                hint="no trainer writes such a record; is this the right file?",
            ) from error
        return value if isinstance(value, list) else [value]

    def _value(self, text: bytes) -> T | list[T]:
        try:
            return self.decoder.decode(text)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Bare NaN and Infinity, and lone surrogates, which Python's own parser reads.
            try:
                loose = json.loads(text)
            except ValueError as error:
                raise _NotOneLine(str(error)) from error
            return msgspec.convert(loose, self.kind)


def _open(file: Path) -> BinaryIO:
    try:
        return file.open("rb", buffering=BLOCK)
    except OSError as error:
        raise RcdiagError(
            f"{file}: cannot be read ({error.strerror})", hint="check its permissions"
        ) from error


def _lines(stream: BinaryIO, file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their number, from 1; none longer than allowed."""
    number = 0
    while line := stream.readline(LONGEST_RECORD):
        number += 1
        if len(line) == LONGEST_RECORD and not line.endswith(b"\n"):
            raise RcdiagError(
                f"{file}, line {number}: longer than {LONGEST_RECORD >> 20} MB",
                hint="one line is one record; is this a file of JSON lines?",
            )
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line.isspace():
            yield number, line


def _whole_file(parser: _Parser[T], file: Path, first: bytes, stream: BinaryIO) -> list[T]:
    """Return the records of a file that is one JSON value over several lines."""
    rest = stream.read(LONGEST_RECORD)
    if not rest.strip() or len(rest) == LONGEST_RECORD:
        raise _malformed(file, 1, first, stream)
    try:
        return parser.parse(first + rest, 1)
    except _NotOneLine:
        raise _malformed(file, 1, first, stream, rest.strip() != b"") from None


def _malformed(
    file: Path, number: int, line: bytes, stream: BinaryIO, more: bool = False
) -> RcdiagError:
    """Return the error of a line that is no JSON: half-written where it is the last one."""
    if not more and not line.endswith(b"\n") and not stream.read(1):
        return RcdiagError(
            f"{file}, line {number}: the last line is cut off, after {len(line):,} bytes",
            hint="its writer was stopped, or is still at work; remove that line, for example by "
            f"`sed -i '{number}d' {file.name}`, or wait",
        )
    return RcdiagError(
        f"{file}, line {number}: not valid JSON ({_reason(line)})",
        hint="each line is one JSON object; was the file joined or edited by hand?",
    )


def _reason(line: bytes) -> str:
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return f"{error.msg}, character {error.pos + 1}"
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    except (ValueError, RecursionError) as error:
        return str(error).split(";")[0]
    return "more than one value"


def _wrong_type(file: Path, number: int, error: msgspec.ValidationError) -> RcdiagError:
    """Return the error of a field with a wrong type, with the path of the value in the record."""
    text, _, path = str(error).replace("`", "").partition(" - at ")
    field = path.removeprefix("$.").removeprefix("$")
    lacking = text.removeprefix("Object missing required field ")
    if lacking != text:
        inside = f" in `{field}`" if field else ""
        return RcdiagError(
            f"{file}, line {number}: no field `{lacking}`{inside}",
            hint="this record is of another format, or of a version that does not write the field",
        )
    return RcdiagError(
        f"{file}, line {number}: `{field or 'the record'}`: {text[:1].lower()}{text[1:]}",
        hint="the value has a type that its trainer does not write; repair or remove that line",
    )
