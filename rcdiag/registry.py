"""Registry: definitions by name, from rcdiag itself, from users and from installed plugins.

Other packages add metrics, trainers, engines, ... with an entry point of the group
`rcdiag.plugins`. The entry point names a function without arguments. It is called once, before any
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
    """An object with the name by which users select it."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Definition)


class Registry(Mapping[str, T], Generic[T]):
    """Definitions by name, in the order in which a reader should see them."""

    def __init__(
        self, what: str, definitions: Iterable[T] | Callable[[], Iterable[T]] = ()
    ) -> None:
        """`what` names one definition in messages: "metric", "trainer".

        If the definitions take long to import, pass a function that imports and returns them; it
        is called when the registry is first read or added to.
        """
        self.what = what
        self._definitions: dict[str, T] = {}
        self._importing: Callable[[], Iterable[T]] | None = None
        if callable(definitions):
            self._importing = definitions
        else:
            self.ship(definitions)

    def ship(self, definitions: Iterable[T]) -> None:
        """Register the definitions of rcdiag itself, which do not change `revision`."""
        for definition in definitions:
            self._register(definition)

    def add(self, definition: T) -> T:
        """Register a definition; refuse a name that is taken."""
        self._import()
        self._register(definition)
        _changed(1)
        return definition

    def _import(self) -> None:
        """Register definitions that are imported late; other threads wait until this is done."""
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
                hint="give the new one another name; rcdiag's own definitions are never replaced",
            )
        self._definitions[definition.name] = definition

    def remove(self, name: str) -> None:
        """Remove a definition."""
        del self._definitions[name]
        _changed(-1)

    @contextlib.contextmanager
    def with_added(self, definition: T) -> Iterator[T]:
        """Register a definition for the duration of a `with` block."""
        self.add(definition)
        try:
            yield definition
        finally:
            self.remove(definition.name)

    def find(self, name: str, option: str = "") -> T:
        """Return the definition with the name that a user gave by `option`, or refuse the name."""
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

    # The methods of `Mapping` look up each name again, which is slow: every block needs all values.
    def values(self) -> ValuesView[T]:
        self._read()
        return dict(self._definitions).values()

    def items(self) -> ItemsView[str, T]:
        self._read()
        return dict(self._definitions).items()

    def _read(self) -> None:
        """Load all definitions: first those of rcdiag, then those of plugins."""
        self._import()
        load_plugins()


_revision = 0
_of_script = 0  # definitions that come neither from rcdiag nor from a plugin


def revision() -> int:
    """Return a number that grows whenever any registry gains or loses a definition.

    It is 0 as long as there are only the definitions of rcdiag itself.
    """
    load_plugins()
    return _revision


def _changed(count: int) -> None:
    global _revision, _of_script
    _revision += 1
    if not _loading_plugins:
        _of_script += count


def has_definitions_of_script() -> bool:
    """Tell whether a script or notebook added definitions, which only this process has.

    Worker processes load installed plugins themselves, but not what a script has added.
    """
    load_plugins()
    return _of_script > 0


_loaded = False
_loading_plugins = False
_failure: RcdiagError | None = None
_loading = threading.RLock()  # reentrant: the loading thread reads registries itself


def load_plugins() -> None:
    """Call every installed plugin once; if one failed, raise its error at every later reading.

    Other threads wait until all plugins are loaded, so that none sees half of the definitions.
    """
    global _loaded, _loading_plugins
    with _loading:
        if _failure is not None:
            raise _failure
        if _loaded:
            return
        _loaded = True  # set first, because plugins read registries
        _loading_plugins = True
        try:
            for entry in importlib.metadata.entry_points(group=GROUP):
                _load(entry)
        finally:
            _loading_plugins = False


def _load(entry: importlib.metadata.EntryPoint) -> None:
    """Call one plugin; keep its exception as an error that names the plugin."""
    global _failure
    try:
        entry.load()()
    except Exception as error:
        _failure = RcdiagError(
            f"plugin `{entry.name}` ({entry.value}) failed: {type(error).__name__}: {error}",
            hint="fix or uninstall the package that brings it",
        )
        raise _failure from error
