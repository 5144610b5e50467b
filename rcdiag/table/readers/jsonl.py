"""Read files of JSON lines, one typed record after the other.

A format declares the fields that it needs as a `msgspec.Struct`; all other fields are skipped. Bare
NaN and Infinity, which Python writes although JSON does not have them, are accepted.
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
from rcdiag.table.arrow import BITS, FLOATS, IDS
from rcdiag.table.readers.peek import (
    BYTE_ORDER_MARK,
    LONGEST_RECORD,
    beyond_record,
    line_too_long,
)

# Types of fields. A number is an int or a float, not a bool, text or null.
Id = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Bit = int | float | bool

# A file is read in blocks of this many bytes.
BLOCK = 1 << 20

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")


def records(file: Path, kind: type[T]) -> Iterator[tuple[str, int, T]]:
    """Yield the records of a file with their place ("FILE, line N") and their line, from 1.

    A line that holds a list gives one record per element. A file that is a single JSON value over
    several lines counts as one line.
    """
    parser: Parser[T | list[T]] = Parser(kind | list[kind])  # type: ignore[valid-type]
    with open_file(file) as stream:
        for number, _, line in lines_of(stream, file):
            where = f"{file}, line {number}"
            try:
                value = parser.parse(line, where)
            except NotJson:
                if number > 1:
                    raise malformed(file, number, line, stream) from None
                value = _whole_file(parser, file, line, stream)
            for record in value if isinstance(value, list) else [value]:
                yield where, number, record


def records_with_rest(file: Path, kind: type[T]) -> Iterator[tuple[str, int, T, dict[str, Any]]]:
    """Yield records as `records` does, each with the fields that its type does not have."""
    named = {field.encode_name for field in msgspec.structs.fields(kind)}
    for where, number, values in records(file, dict):  # type: ignore[type-var]
        try:
            record = msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            raise _wrong_type(where, error) from error
        yield where, number, record, {name: values[name] for name in values if name not in named}


def floats(values: Sequence[float | None]) -> NDArray[np.float32]:
    """Return numbers as float32; null becomes NaN, a number beyond its range becomes infinite."""
    try:
        numbers = np.fromiter(values, np.float64, len(values))
    except TypeError:  # null among them
        numbers = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        return numbers.astype(FLOATS)


def ids(values: list[int]) -> NDArray[np.int32]:
    return np.fromiter(values, IDS, len(values))


def bits(values: list[Bit], where: str, name: str) -> NDArray[np.uint8]:
    """Return a mask as uint8; raise an error at values other than 0 and 1."""
    try:
        numbers = np.fromiter(values, np.float64, len(values))
        wrong = np.flatnonzero((numbers != 0) & (numbers != 1)).tolist()
    except OverflowError:  # an integer beyond the range of floats
        wrong = [place for place, value in enumerate(values) if value not in (0, 1)]
    if wrong:
        raise RcdiagError(
            f"{where}: `{name}[{wrong[0]}]` is {str(values[wrong[0]])[:20]}; a mask holds only 0 "
            "and 1",
            hint="weights are not a mask; was another column written under this name?",
        )
    return numbers.astype(BITS)


def check_length(
    values: list[Any] | NDArray[Any] | None, length: int, where: str, name: str, beside: str
) -> None:
    """Refuse a list whose length differs from that of the tokens, which are called `beside`."""
    if values is not None and len(values) != length:
        raise RcdiagError(
            f"{where}: `{name}` has {len(values)} values, `{beside}` has {length}",
            hint="values and tokens of this row do not belong together; write the dump again",
        )


class NotJson(ValueError):
    """A text is not JSON."""


class Parser(Generic[V]):
    """Parses texts that hold one JSON value of a given type each."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.decoder: msgspec.json.Decoder[V] = msgspec.json.Decoder(kind)

    def parse(self, text: bytes, where: str) -> V:
        """Return a text's value; NotJson if it is not JSON, RcdiagError if its type is wrong."""
        try:
            return self._value(text)
        except msgspec.ValidationError as error:
            raise _wrong_type(where, error) from error
        except RecursionError as error:
            raise RcdiagError(
                f"{where}: lists or objects are nested too deeply to be read",
                hint="no trainer writes such a record; is this the right file?",
            ) from error

    def _value(self, text: bytes) -> V:
        try:
            return self.decoder.decode(text)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Python's own parser accepts bare NaN and Infinity, and lone surrogates.
            try:
                loose = json.loads(text)
            except ValueError as error:
                raise NotJson(str(error)) from error
            # Lone surrogates, as escapes or as bytes, are not characters: they become "?".
            if any(sign in text for sign in (b"\\ud", b"\\uD", b"\xed")):
                clean = json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace")
                loose = json.loads(clean)
            record: V = msgspec.convert(loose, self.kind)
            return record


def open_file(file: Path) -> BinaryIO:
    try:
        return file.open("rb", buffering=BLOCK)
    except OSError as error:
        raise RcdiagError(
            f"{file}: cannot be read ({error.strerror})", hint="check its permissions"
        ) from error


def lines_of(stream: BinaryIO, file: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number from 1, byte offset, text) of each line that is not blank.

    A line longer than LONGEST_RECORD is an error.
    """
    number = end = 0
    while line := stream.readline(LONGEST_RECORD):
        number += 1
        start, end = end, end + len(line)
        if beyond_record(line):
            raise line_too_long(file, number)
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line.isspace():
            yield number, start, line


def _whole_file(
    parser: Parser[T | list[T]], file: Path, first: bytes, stream: BinaryIO
) -> T | list[T]:
    """Return the records of a file that is one JSON value over several lines."""
    rest = stream.read(LONGEST_RECORD)
    if not rest.strip() or len(rest) == LONGEST_RECORD:
        raise malformed(file, 1, first, stream)
    try:
        return parser.parse(first + rest, f"{file}, line 1")
    except NotJson:
        raise malformed(file, 1, first, stream, rest.strip() != b"") from None


def malformed(
    file: Path, number: int, line: bytes, stream: BinaryIO, more: bool = False
) -> RcdiagError:
    """Return the error for an invalid line; the last line may be incomplete."""
    if not more and not line.endswith(b"\n") and not stream.read(1):
        return RcdiagError(
            f"{file}, line {number}: the last line is cut off after {len(line):,} bytes",
            hint="its writer was stopped, or is still running; remove that line, for example by "
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


def _wrong_type(where: str, error: msgspec.ValidationError) -> RcdiagError:
    """Return the error for a field of a wrong type, with the value's path in the record."""
    text, _, path = str(error).replace("`", "").partition(" - at ")
    field = path.removeprefix("$.").removeprefix("$")
    lacking = text.removeprefix("Object missing required field ")
    if lacking != text:
        inside = f" in `{field}`" if field else ""
        return RcdiagError(
            f"{where}: no field `{lacking}`{inside}",
            hint="this record is of another format, or of a version that does not write the field",
        )
    return RcdiagError(
        f"{where}: `{field or 'the record'}`: {text[:1].lower()}{text[1:]}",
        hint="the value has a type that its trainer does not write; repair or remove that line",
    )
