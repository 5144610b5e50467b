"""The pickle machine of rcdiag executes the instructions of a pickle and calls nothing in it.

It knows protocols 2 to 5 of https://docs.python.org/3/library/pickle.html. A name in a pickle is
looked up in a table of `Name`s (`names.py`); what it stands for is built by rcdiag's own code. A
run of numbers, such as the items of a token list, is first recognised as nothing but numbers and
then decoded by Python's pickle at once, which is twenty times faster.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rcdiag.errors import RcdiagError
from rcdiag.table.readers.safe.allowed import NAMES
from rcdiag.table.readers.safe.content import Content, damaged, open_content
from rcdiag.table.readers.safe.inert import Foreign, Name, Pair, Unfinished, hashable
from rcdiag.table.readers.safe.usual import MARK, long_list, tensor_call

# Numbers, True, False and None one after the other: instructions that only push a constant.
CONSTANTS = re.compile(
    rb"(?:(?:M..)++|(?:K.)++|(?:G........)++|(?:J....)++|[N\x88\x89]++)++", re.DOTALL
)
SHORTEST, RUNS = ord("K"), frozenset(b"KMJGN\x88\x89")  # of a byte; those that begin a run
BEFORE_CONSTANTS, AFTER_CONSTANTS = b"\x80\x02](", b"e."

# Whole numbers beyond this have no use in a dump; a longer one costs time to build.
LONGEST_INTEGER = 64  # bytes
# Byte strings from this size on are given as a view of the file, not as a copy.
SMALLEST_VIEW = 256


def load_pickle(source: Path | Content, names: Mapping[Pair, Name] | None = None) -> Any:
    """Return what a pickle holds, built of plain containers, numpy arrays and inert objects.

    `names` are stand-ins for the classes of a trainer, beside those that every pickle may use. A
    pickle that needs another name is refused with that name; nothing of it is imported or called.
    """
    content = open_content(source)
    return run(content, NAMES | dict(names or {}))


def run(
    content: Content,
    names: Mapping[Pair, Name],
    load_storage: Callable[[Any], Any] | None = None,
    *,
    arrays: bool = False,
) -> Any:
    """Run a pickle that ends where its content ends.

    `load_storage` returns what a persistent id stands for: the storage of a torch file. With
    `arrays`, long lists of nothing but whole numbers, or of nothing but floats, are arrays.
    """
    machine = _Machine(content, names, load_storage, arrays)
    try:
        return machine.run()
    except _GrownArray:
        return run(content, names, load_storage)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        MemoryError,
        RecursionError,
    ) as error:
        raise damaged(
            content, f"its pickle breaks off or makes no sense at byte {machine.at}"
        ) from (error)


class _GrownArray(Exception):
    """A list that was taken for one of nothing but numbers goes on behind them."""


class _Machine:
    """The machine's state: a place in the pickle, a stack, marks on it, and a memo."""

    def __init__(
        self,
        content: Content,
        names: Mapping[Pair, Name],
        load_storage: Callable[[Any], Any] | None,
        arrays: bool,
    ) -> None:
        self.content = content
        self.data = content.view
        self.names = names
        self.load_storage = load_storage
        self.arrays = arrays
        self.at = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # stacks under the marks
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Do one instruction after the other; returns what is left on the stack."""
        data, instructions = self.data, INSTRUCTIONS
        while True:
            code = data[self.at]
            self.at += 1
            if code == STOP:
                break
            instructions[code](self)
        if self.at != len(data) or self.below or len(self.stack) != 1:
            raise ValueError("something follows the end of the pickle")
        return self.stack[0]

    # Arguments of instructions

    def take(self, size: int) -> memoryview:
        end = self.at + size
        if end > len(self.data):
            raise ValueError("an argument reaches beyond the end")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, size: int) -> int:
        start, self.at = self.at, self.at + size
        if size == 1:
            return self.data[start]
        if self.at > len(self.data):
            raise ValueError("an argument reaches beyond the end")
        return int.from_bytes(self.data[start : self.at], "little")

    def line(self) -> str:
        limit = bytes(self.data[self.at : self.at + 1024])
        text, newline, _ = limit.partition(b"\n")
        if not newline:
            raise ValueError("a name does not end")
        self.at += len(text) + 1
        return text.decode()

    # Constants

    def protocol(self) -> None:
        number = self.number(1)
        if self.at != 2 or not 2 <= number <= 5:
            raise ValueError("a protocol that is none of 2 to 5")
        # From protocol 4 on lists are cut by frames; torch.save writes protocol 2.
        self.arrays = self.arrays and number < 4

    def frame(self) -> None:
        self.take(8)

    def constants(self) -> None:
        """Push the constants that follow each other here."""
        data, at = self.data, self.at
        if data[at - 1] == SHORTEST and data[at + 1] not in RUNS:  # one alone, such as a length
            self.stack.append(data[at])
            self.at = at + 1
            return
        match = CONSTANTS.match(self.data, self.at - 1)
        if match is None:
            raise ValueError("a number that breaks off")
        self.at = match.end()
        self.stack += pickle.loads(BEFORE_CONSTANTS + match[0] + AFTER_CONSTANTS)

    def integer(self, size_of_size: int) -> None:
        size = self.number(size_of_size)
        if size > LONGEST_INTEGER:
            raise ValueError("a whole number of more digits than a dump has")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def text(self, size_of_size: int) -> None:
        self.stack.append(str(self.take(self.number(size_of_size)), "utf-8", "surrogatepass"))

    def bytes(self, size_of_size: int) -> None:
        part = self.take(self.number(size_of_size))
        self.stack.append(bytes(part) if len(part) < SMALLEST_VIEW else part)

    # Containers

    def mark(self) -> None:
        if self.data[self.at] == MARK and self.tensor():
            return
        self.below.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.pop_mark()

    def duplicate(self) -> None:
        self.stack.append(self.stack[-1])

    def empty(self, kind: type) -> None:
        self.stack.append(kind())

    def empty_list(self) -> None:
        """Push a list, or an array in place of the list of numbers that begins here."""
        found = long_list(self.data, self.at) if self.arrays else None
        if found is None:
            self.stack.append([])
            return
        self.stack.append(found.values)
        if found.key is not None:
            self.memo[len(self.memo) if found.key < 0 else found.key] = found.values
        self.at = found.end

    def marked_tuple(self) -> None:
        items = self.pop_mark()
        self.stack.append(tuple(items))

    def short_tuple(self, size: int) -> None:
        if len(self.stack) < size:
            raise ValueError("a tuple of more than there is")
        self.stack[-size:] = [tuple(self.stack[-size:])]

    def frozen_set(self) -> None:
        items = self.pop_mark()
        self.stack.append(frozenset(map(hashable, items)))

    def append(self) -> None:
        self.extend_by([self.stack.pop()])

    def appends(self) -> None:
        self.extend_by(self.pop_mark())

    def extend_by(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target += items
        elif isinstance(target, np.ndarray):
            raise _GrownArray
        elif not isinstance(target, Foreign):
            raise TypeError("items for something that is no list")

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_pairs([key, value])

    def set_items(self) -> None:
        self.set_pairs(self.pop_mark())

    def set_pairs(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Foreign):
            return
        if not isinstance(target, dict):
            raise TypeError("pairs for something that is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            target[hashable(key)] = value

    def add_items(self) -> None:
        items, target = self.pop_mark(), self.stack[-1]
        if not isinstance(target, set):
            raise TypeError("items for something that is no set")
        target.update(map(hashable, items))

    # Memo

    def put(self) -> None:
        self.remember(self.data[self.at])
        self.at += 1

    def put_long(self) -> None:
        self.remember(self.number(4))

    def memoize(self) -> None:
        self.remember(len(self.memo))

    def remember(self, key: int) -> None:
        value = self.stack[-1]
        self.memo[key] = value
        if isinstance(value, Unfinished):
            value.memo_keys.append(key)

    def get(self) -> None:
        self.stack.append(self.memo[self.data[self.at]])
        self.at += 1

    def get_long(self) -> None:
        self.stack.append(self.memo[self.number(4)])

    # Names and what is built by them

    def name(self) -> None:
        module = self.line()
        self.look_up(module, self.line())

    def stack_name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.look_up(module, name)

    def look_up(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a name that is no text")
        found = self.names.get((module, name))
        if found is None:
            raise refused(self.content, f"{module}.{name}")
        self.stack.append(found)

    def build(self) -> None:
        """Build what a name and its arguments stand for; rcdiag's own code does."""
        arguments, name = self.stack.pop(), self.stack.pop()
        if not isinstance(arguments, tuple):
            raise TypeError("a call without arguments")
        self.stack.append(_built(name, arguments))

    def build_with_keywords(self) -> None:
        keywords = self.stack.pop()
        if keywords != {}:
            raise TypeError("keywords")
        self.build()

    def set_state(self) -> None:
        state, value = self.stack.pop(), self.stack.pop()
        if isinstance(value, Unfinished):
            finished = value.finish(state)
            for key in value.memo_keys:
                self.memo[key] = finished
            value = finished
        elif isinstance(value, Foreign):
            value.state = state
        elif not isinstance(value, dict):  # an OrderedDict of torch may carry attributes
            raise TypeError("a state for something that has none")
        self.stack.append(value)

    def persistent(self) -> None:
        self.stack.append(self.stored(self.stack.pop()))

    def stored(self, reference: Any) -> Any:
        if self.load_storage is None:
            raise ValueError("a reference to another file")
        return self.load_storage(reference)

    def tensor(self) -> bool:
        """Do all instructions that make a tensor of one dimension; False where they are others."""
        found = tensor_call(self.data, self.at - 1)
        if found is None:
            return False
        memo = self.memo
        if found.key is not None:
            memo[found.key_at] = found.key
        key = memo[found.key_at]
        reference = (memo[found.word], memo[found.kind], key, memo[found.location], found.elements)
        memo[found.reference_at] = reference
        storage = self.stored(reference)
        size, stride = (found.size,), (1,)
        memo[found.size_at], memo[found.stride_at] = size, stride
        hooks = memo[found.hooks_at] = _built(memo[found.hooks], ())
        arguments = (storage, found.offset, size, stride, found.grad, hooks)
        memo[found.arguments_at] = arguments
        self.stack[-1] = _built(self.stack[-1], arguments)
        self.at = found.end
        self.remember(found.tensor_at)
        return True

    def unknown(self) -> None:
        raise ValueError("an instruction of an old or unknown protocol")


def refused(content: Content, name: str) -> RcdiagError:
    return RcdiagError(
        f"{content.name}: the file needs {name} to load, which is none of the names that tensors "
        "and plain containers use; nothing of it was executed",
        hint="save arrays, tensors, text and numbers only, without objects of other classes; a "
        "file from an unknown source may be hostile",
    )


def _built(name: Any, arguments: tuple[Any, ...]) -> Any:
    """Return what rcdiag's own code builds for a name that a pickle calls."""
    if not isinstance(name, Name):
        raise TypeError("a call of something that is no name")
    return name.build(*arguments)


def _with(method: Callable[..., None], *arguments: Any) -> Callable[[_Machine], None]:
    return lambda machine: method(machine, *arguments)


STOP = ord(".")
INSTRUCTIONS: list[Callable[[_Machine], None]] = [_Machine.unknown] * 256
for _codes, _instruction in (
    (RUNS, _Machine.constants),
    (b"\x80", _Machine.protocol),
    (b"\x95", _Machine.frame),
    (b"\x8a", _with(_Machine.integer, 1)),
    (b"\x8b", _with(_Machine.integer, 4)),
    (b"\x8c", _with(_Machine.text, 1)),
    (b"X", _with(_Machine.text, 4)),
    (b"\x8d", _with(_Machine.text, 8)),
    (b"C", _with(_Machine.bytes, 1)),
    (b"B", _with(_Machine.bytes, 4)),
    (b"\x8e\x96", _with(_Machine.bytes, 8)),
    (b"(", _Machine.mark),
    (b"0", _Machine.pop),
    (b"1", _Machine.pop_mark),
    (b"2", _Machine.duplicate),
    (b"]", _Machine.empty_list),
    (b"}", _with(_Machine.empty, dict)),
    (b")", _with(_Machine.empty, tuple)),
    (b"\x8f", _with(_Machine.empty, set)),
    (b"\x91", _Machine.frozen_set),
    (b"t", _Machine.marked_tuple),
    (b"\x85", _with(_Machine.short_tuple, 1)),
    (b"\x86", _with(_Machine.short_tuple, 2)),
    (b"\x87", _with(_Machine.short_tuple, 3)),
    (b"a", _Machine.append),
    (b"e", _Machine.appends),
    (b"s", _Machine.set_item),
    (b"u", _Machine.set_items),
    (b"\x90", _Machine.add_items),
    (b"q", _Machine.put),
    (b"r", _Machine.put_long),
    (b"\x94", _Machine.memoize),
    (b"h", _Machine.get),
    (b"j", _Machine.get_long),
    (b"c", _Machine.name),
    (b"\x93", _Machine.stack_name),
    (b"R\x81", _Machine.build),
    (b"\x92", _Machine.build_with_keywords),
    (b"b", _Machine.set_state),
    (b"Q", _Machine.persistent),
):
    for _code in _codes:
        INSTRUCTIONS[_code] = _instruction  # type: ignore[assignment]
