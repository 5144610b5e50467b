"""Registries hold definitions by name: what ships, what users add, and installed plugins.

A package of somebody else adds metrics, trainers, engines, ... by an entry point of the group
`rcdiag.plugins`. The entry point names a function without arguments; it is called once, before a
registry is first read, and adds its definitions: `METRICS.add(Metric(...))`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Generic, Protocol, TypeVar

from rcdiag.errors import RcdiagError, did_you_mean

GROUP = "rcdiag.plugins"


class Definition(Protocol):
    """An object with the name by which users ask for it."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Definition)


class Registry(Mapping[str, T], Generic[T]):
    """Definitions by name, in the order in which a reader should see them."""

    def __init__(
        self, what: str, definitions: Iterable[T] | Callable[[], Iterable[T]] = ()
    ) -> None:
        """`what` is the word for one definition in messages: "metric", "trainer".

        Definitions that take long to import are given as a function that imports them; it is
        called when the registry is first read or added to.
        """
        self.what = what
        self._definitions: dict[str, T] = {}
        self._importing: Callable[[], Iterable[T]] | None = None
        if callable(definitions):
            self._importing = definitions
        else:
            self.ship(definitions)

    def ship(self, definitions: Iterable[T]) -> None:
        """Register what rcdiag itself brings: `revision` stays 0."""
        for definition in definitions:
            self._register(definition)

    def add(self, definition: T) -> T:
        """Register a definition; a name that is taken is refused, never replaced."""
        self._import()
        self._register(definition)
        _changed(1)
        return definition

    def _import(self) -> None:
        """Register what is imported late; other threads wait until all of it is there."""
        if self._importing is None:
            return
        with _loading:
            if self._importing is not None:
                self.ship(self._importing())
                self._importing = None

    def _register(self, definition: T) -> None:
        if definition.name in self._definitions:
            raise RcdiagError(
                f"{self.what} `{definition.name}` is defined twice",
                hint="give the new one another name; nothing that ships is replaced",
            )
        self._definitions[definition.name] = definition

    def remove(self, name: str) -> None:
        """Take a definition out again."""
        del self._definitions[name]
        _changed(-1)

    @contextlib.contextmanager
    def with_added(self, definition: T) -> Iterator[T]:
        """Register a definition for the length of a `with` block."""
        self.add(definition)
        try:
            yield definition
        finally:
            self.remove(definition.name)

    def find(self, name: str, option: str = "") -> T:
        """Find the definition of a name that a user gave by `option`, or refuse the name."""
        if name not in self:
            raise RcdiagError(
                f"{option} {name}: no such {self.what}".strip(),
                hint=f"{did_you_mean(name, self)}known: {', '.join(self)}",
            )
        return self[name]

    def __getitem__(self, name: str) -> T:
        self._read()
        return self._definitions[name]

    def __iter__(self) -> Iterator[str]:
        self._read()
        return iter(tuple(self._definitions))

    def __len__(self) -> int:
        self._read()
        return len(self._definitions)

    # Those of `Mapping` look up every name again; a pass asks for all definitions at every block.
    def values(self) -> ValuesView[T]:
        self._read()
        return dict(self._definitions).values()

    def items(self) -> ItemsView[str, T]:
        self._read()
        return dict(self._definitions).items()

    def _read(self) -> None:
        """Make all definitions there: what ships first, then what plugins add."""
        self._import()
        load_plugins()


_revision = 0
_of_script = 0  # definitions that neither ship nor come from a plugin


def revision() -> int:
    """Return a number that grows whenever any registry gains or loses a definition.

    It is 0 as long as there is only what rcdiag itself brings.
    """
    load_plugins()
    return _revision


def _changed(count: int) -> None:
    global _revision, _of_script
    _revision += 1
    if not _loading_plugins:
        _of_script += count


def has_definitions_of_script() -> bool:
    """Tell whether this process has definitions that another one would not find when it starts.

    Installed plugins are found everywhere; what a script or notebook has added is in its process.
    """
    load_plugins()
    return _of_script > 0


_loaded = False
_loading_plugins = False
_failure: RcdiagError | None = None
_loading = threading.RLock()  # the thread that loads reads registries too, so it may enter again


def load_plugins() -> None:
    """Call every installed plugin once; after one that failed, every reading is its error.

    Other threads wait until all plugins are there, so that none reads half of the definitions.
    """
    global _loaded, _loading_plugins
    with _loading:
        if _failure is not None:
            raise _failure
        if _loaded:
            return
        _loaded = True  # a plugin reads registries too
        _loading_plugins = True
        try:
            for entry in importlib.metadata.entry_points(group=GROUP):
                _load(entry)
        finally:
            _loading_plugins = False


def _load(entry: importlib.metadata.EntryPoint) -> None:
    """Call one plugin; what it raises is kept as the error that names it."""
    global _failure
    try:
        entry.load()()
    except Exception as error:
        _failure = RcdiagError(
            f"plugin `{entry.name}` ({entry.value}) failed: {type(error).__name__}: {error}",
            hint="fix or uninstall the package that brings it",
        )
        raise _failure from error
