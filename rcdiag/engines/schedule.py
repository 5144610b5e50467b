"""Distributes parts of a table over engines; the part of an engine that died is done again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from msgspec import Struct

from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Scores, Trajectories

OnTokens = Callable[[int], None]  # called with the number of tokens that have just been scored
# A part that has killed this many engines is given up, and so is an engine that died this often in
# a row.
ATTEMPTS = 3


class TablePart(Struct, frozen=True, kw_only=True):
    """Some rows of a table, with the columns that an engine reads."""

    name: str  # the file that its scores are written to
    rows: Trajectories


class ScoredPart(Struct, frozen=True, kw_only=True):
    """The scores of a part, and what the engine says of itself."""

    scores: Scores
    about: dict[str, Any]


class EngineLostError(Exception):
    """An engine died before it finished a part; an `RcdiagError` if that happens again."""

    def __init__(self, reason: RcdiagError) -> None:
        super().__init__(reason)
        self.reason = reason


class RunningEngine(Protocol):
    """An engine somewhere, which scores one part at a time."""

    def load(self) -> None:
        """Wait until the model is loaded, or raise `EngineLostError`."""
        ...

    def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
        """Score a part, or raise `EngineLostError`."""
        ...

    def close(self) -> None:
        """End the engine, also in the middle of a part; more than once does no harm."""
        ...


class Schedule:
    """The queue of parts, and the engines that take them, one thread for each engine."""

    def __init__(
        self,
        parts: Iterator[TablePart],
        start: Callable[[int], RunningEngine],
        keep: Callable[[TablePart, ScoredPart], None],
        on_tokens: OnTokens,
        say: Callable[[str], None],
    ) -> None:
        """`start(n)` starts engine number n, from 0; `parts` is read lazily.

        `keep` writes a scored part to disk, in the thread of the engine that scored it.
        `on_tokens` is called with 0 once an engine is loaded, then with the tokens that have just
        been scored; `say` takes a sentence where an engine has died.
        """
        self._parts, self._start, self._keep = parts, start, keep
        self._on_tokens, self._say = on_tokens, say
        self._changed = threading.Condition()
        self._again: list[
            tuple[TablePart, int]
        ] = []  # parts of dead engines, and how many died of them
        self._pending = 0  # parts that engines have
        self._engines: dict[int, RunningEngine] = {}  # started, by number
        self._loaded: set[int] = set()
        self._ended = False  # all parts are done, or something failed
        self._telling = threading.Lock()

    def run(self, engines: int) -> None:
        """Score all parts with `engines` engines; the first failure ends all of them.

        An engine that is still being started when the last part is done is ended too.
        """
        with ThreadPoolExecutor(engines, thread_name_prefix="engine") as pool:
            working = [pool.submit(self._work, number) for number in range(engines)]
            try:
                with self._changed:
                    self._changed.wait_for(lambda: self._ended)
            finally:
                self._end()
                for engine in list(self._engines.values()):
                    engine.close()
        for one in working:
            one.result()

    def _work(self, number: int) -> None:
        """Load an engine and give it parts until there are none left."""
        try:
            lost_in_a_row = 0
            while not self._ended:
                part: TablePart | None = None
                deaths = scored = 0

                def advance(tokens: int) -> None:
                    nonlocal scored
                    scored += tokens
                    self._tell(tokens)

                try:
                    engine = self._engine(number)
                    part, deaths = self._next()
                    if part is None:
                        return
                    self._keep(part, engine.score(part, advance))
                except EngineLostError as lost:
                    lost_in_a_row += 1
                    if part is not None:
                        self._tell(-scored)
                        self._give_back(part, deaths + 1)
                    if self._bury(number, lost, lost_in_a_row, deaths + 1):
                        return
                else:
                    lost_in_a_row = 0
                    self._done()
        except BaseException:
            self._end()
            raise

    def _engine(self, number: int) -> RunningEngine:
        """Return the engine of a number, started and loaded first where there is none."""
        with self._changed:
            engine = self._engines.get(number)
            if engine is None:
                engine = self._engines[number] = self._start(number)
            if number in self._loaded:
                return engine
            ended = self._ended
        if ended:  # `_end` may have closed all engines before this one was registered
            engine.close()
        engine.load()
        with self._changed:
            self._loaded.add(number)
        self._tell(0)
        return engine

    def _next(self) -> tuple[TablePart | None, int]:
        """Take the next part, None where all are done; wait while one may come back."""
        with self._changed:
            while not self._ended:
                if self._again:
                    self._pending += 1
                    return self._again.pop(0)
                part = next(self._parts, None)
                if part is not None:
                    self._pending += 1
                    return part, 0
                if not self._pending:
                    self._end()
                    break
                self._changed.wait()
            return None, 0

    def _bury(self, number: int, lost: EngineLostError, in_a_row: int, deaths: int) -> bool:
        """Take a dead engine out; return whether its thread ends, or raise where none goes on.

        A part that has ended ATTEMPTS engines ends the run. An engine that does not come back is
        done without, as long as there is another.
        """
        with self._changed:
            engine = self._engines.pop(number)
            self._loaded.discard(number)
            others = len(self._engines)
            ended = self._ended
        engine.close()
        if ended:
            return True
        if deaths >= ATTEMPTS or (in_a_row >= ATTEMPTS and not others):
            raise lost.reason from lost
        if in_a_row >= ATTEMPTS:
            self._say(f"{lost.reason.message}; {others} other engines go on")
            return True
        self._say(f"{lost.reason.message}; another is started, and goes on where it was")
        return False

    def _give_back(self, part: TablePart, deaths: int) -> None:
        with self._changed:
            self._again.append((part, deaths))
            self._pending -= 1
            self._changed.notify_all()

    def _done(self) -> None:
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()

    def _end(self) -> None:
        """Let no engine take another part."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _tell(self, tokens: int) -> None:
        with self._telling:
            self._on_tokens(tokens)
