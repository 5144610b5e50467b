"""A queue of parts for several engines; the part of an engine that died is scored again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from msgspec import Struct

from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Scores, Trajectories

OnTokens = Callable[[int], None]  # called with the number of tokens that have just been scored
# The run ends when this many engines have died on one part. An engine that died this often in a row
# is not started again.
ATTEMPTS = 3


class TablePart(Struct, frozen=True, kw_only=True):
    """Consecutive rows of a table, with the columns that an engine reads."""

    name: str  # the file that its scores are written to
    rows: Trajectories


class ScoredPart(Struct, frozen=True, kw_only=True):
    """The scores of a part, and the provenance that the engine reports."""

    scores: Scores
    about: dict[str, Any]


class EngineLostError(Exception):
    """An engine died before it finished a part; `reason` is the error if it is not replaced."""

    def __init__(self, reason: RcdiagError) -> None:
        super().__init__(reason)
        self.reason = reason


class RunningEngine(Protocol):
    """A started engine, in whichever process or machine, which scores one part at a time."""

    def load(self) -> None:
        """Wait until the model is loaded, or raise `EngineLostError`."""
        ...

    def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
        """Score a part, or raise `EngineLostError`."""
        ...

    def close(self) -> None:
        """End the engine, even while it scores a part; may be called more than once."""
        ...


class Schedule:
    """The queue of parts, and one thread for each engine that takes parts from it."""

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
        been scored, a negative number if they must be scored again. `say` takes a sentence for
        the user when an engine has died.
        """
        self._parts, self._start, self._keep = parts, start, keep
        self._on_tokens, self._say = on_tokens, say
        self._changed = threading.Condition()
        self._requeued: list[
            tuple[TablePart, int]
        ] = []  # parts whose engine died, and how often that happened
        self._pending = 0  # parts that engines are working on
        self._engines: dict[int, RunningEngine] = {}  # started, by number
        self._loaded: set[int] = set()
        self._ended = False  # all parts are scored, or something failed
        self._progress_lock = threading.Lock()

    def run(self, engines: int) -> None:
        """Score all parts with `engines` engines; the first failure ends all of them.

        An engine that is still loading when the last part is done is ended too.
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
        """Load an engine and give it parts until none are left."""
        try:
            lost_in_a_row = 0
            while not self._ended:
                part: TablePart | None = None
                deaths = scored = 0

                def advance(tokens: int) -> None:
                    nonlocal scored
                    scored += tokens
                    self._report_progress(tokens)

                try:
                    engine = self._engine(number)
                    part, deaths = self._next()
                    if part is None:
                        return
                    self._keep(part, engine.score(part, advance))
                except EngineLostError as lost:
                    lost_in_a_row += 1
                    if part is not None:
                        self._report_progress(-scored)
                        self._give_back(again=(part, deaths + 1))
                    if self._drop_engine(number, lost, lost_in_a_row, deaths + 1):
                        return
                else:
                    lost_in_a_row = 0
                    self._give_back()
        except BaseException:
            self._end()
            raise

    def _engine(self, number: int) -> RunningEngine:
        """Return engine `number`; start and load it if it does not run."""
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
        self._report_progress(0)
        return engine

    def _next(self) -> tuple[TablePart | None, int]:
        """Take the next part, or None when all are done; wait while a part may be requeued."""
        with self._changed:
            while not self._ended:
                if self._requeued:
                    self._pending += 1
                    return self._requeued.pop(0)
                part = next(self._parts, None)
                if part is not None:
                    self._pending += 1
                    return part, 0
                if not self._pending:
                    self._end()
                    break
                self._changed.wait()
            return None, 0

    def _drop_engine(self, number: int, lost: EngineLostError, in_a_row: int, deaths: int) -> bool:
        """Remove a dead engine; return whether its thread ends, and raise if the run must end.

        The run ends if ATTEMPTS engines died on one part, or if the last engine died ATTEMPTS times
        in a row. With other engines left, it goes on without the one that keeps dying.
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
        self._say(f"{lost.reason.message}; another is started and scores the same part again")
        return False

    def _give_back(self, again: tuple[TablePart, int] | None = None) -> None:
        """Count a part as no longer worked on; `again` queues it anew, with its engines' deaths."""
        with self._changed:
            if again is not None:
                self._requeued.append(again)
            self._pending -= 1
            self._changed.notify_all()

    def _end(self) -> None:
        """Stop engines from taking another part."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _report_progress(self, tokens: int) -> None:
        with self._progress_lock:
            self._on_tokens(tokens)
