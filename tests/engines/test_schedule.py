"""Every part is scored once; the part of a dead engine is repeated, with a limit."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rcdiag.engines.schedule import (
    ATTEMPTS,
    EngineLostError,
    OnTokens,
    Schedule,
    ScoredPart,
    TablePart,
)
from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Scores
from tests.builders import make_trajectories

TOKENS = 7  # of every part
ROWS = make_trajectories([[-1.0]], [[-1.0]])
SCORED = ScoredPart(scores=Scores(np.zeros(1, np.float32)), about={})
LIMIT = 300.0  # seconds: time limit for short work of another thread


def ignore(*_: object) -> None:
    pass


def parts(count: int) -> Iterator[TablePart]:
    return (TablePart(name=f"{number}", rows=ROWS) for number in range(count))


class Engines:
    """Engines that die on certain parts, a given number of times."""

    def __init__(self, deaths: dict[str, int] | None = None) -> None:
        self.deaths = Counter(deaths or {})
        self.kept: list[str] = []
        self.started: Counter[int] = Counter()
        self.closed = 0
        self.alive: set[Engine] = set()
        self.lock = threading.Lock()

    def keep(self, part: TablePart, scored: ScoredPart) -> None:
        assert scored is SCORED
        with self.lock:
            self.kept.append(part.name)

    def start(self, number: int) -> Engine:
        self.started[number] += 1
        engine = Engine(self)
        with self.lock:
            self.alive.add(engine)
        return engine


class Engine:
    def __init__(self, all_engines: Engines) -> None:
        self.all = all_engines

    def load(self) -> None:
        pass

    def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
        on_tokens(TOKENS - 1)
        with self.all.lock:
            if self.all.deaths[part.name] > 0:
                self.all.deaths[part.name] -= 1
                raise EngineLostError(RcdiagError("the engine failed: killed by signal 9"))
        on_tokens(1)
        return SCORED

    def close(self) -> None:
        with self.all.lock:
            self.all.alive.discard(self)


def run(
    engines: Engines, count: int, side_by_side: int, say: Callable[[str], None] = lambda text: None
) -> int:
    """Score a number of parts; returns the reported tokens."""
    told = 0

    def tell(tokens: int) -> None:
        nonlocal told
        told += tokens

    Schedule(parts(count), engines.start, engines.keep, tell, say).run(side_by_side)
    return told


@settings(deadline=None)
@given(
    st.integers(0, 12),
    st.integers(1, 4),
    st.dictionaries(st.integers(0, 11).map(str), st.integers(0, ATTEMPTS - 1), max_size=1),
)
def test_all_parts_are_scored_once_whatever_engines_die(
    count: int, side_by_side: int, deaths: dict[str, int]
) -> None:
    engines = Engines(deaths)
    told = run(engines, count, side_by_side)
    assert sorted(engines.kept, key=int) == [str(number) for number in range(count)]
    assert told == TOKENS * count
    assert not engines.alive


def test_one_engine_takes_the_parts_in_order() -> None:
    engines = Engines()
    run(engines, 6, 1)
    assert engines.kept == list("012345")
    assert engines.started == {0: 1}


def test_a_dead_engine_is_reported_and_another_repeats_its_part() -> None:
    engines, said = Engines({"2": 1}), []
    run(engines, 4, 1, said.append)
    assert engines.started == {0: 2}
    (line,) = said
    assert line.startswith("the engine failed: killed by signal 9; another is started")


def test_a_part_that_kills_every_engine_is_given_up() -> None:
    engines = Engines({"2": 100})
    with pytest.raises(RcdiagError, match="killed by signal 9"):
        run(engines, 4, 2)
    assert 100 - engines.deaths["2"] == ATTEMPTS
    assert not engines.alive


def test_an_error_of_one_engine_ends_the_others_in_the_middle_of_their_part() -> None:
    working, ended = threading.Event(), threading.Event()

    class Refuses(Engine):
        def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
            assert working.wait(LIMIT), "the other engine got no part"
            raise RcdiagError("no such option")

    class Works(Engine):
        def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
            working.set()
            assert ended.wait(LIMIT), "nobody ended this engine"
            raise EngineLostError(RcdiagError("killed by signal 9"))

        def close(self) -> None:
            ended.set()

    def start(number: int) -> Engine:
        return (Works if number else Refuses)(Engines())

    with pytest.raises(RcdiagError, match="no such option"):
        Schedule(parts(2), start, ignore, ignore, ignore).run(2)
    assert ended.is_set()


def test_a_damaged_table_ends_all_engines() -> None:
    def damaged() -> Iterator[TablePart]:
        yield from parts(2)
        raise RcdiagError("table.parquet: damaged")

    engines = Engines()
    with pytest.raises(RcdiagError, match="damaged"):
        Schedule(damaged(), engines.start, ignore, ignore, ignore).run(2)
    assert not engines.alive


def test_an_engine_without_a_part_waits_for_one_that_comes_back() -> None:
    """A dead engine returns the last part while the other engine is idle."""
    engines = Engines({"1": 1})
    slow = Engine.score

    class Slow(Engine):
        def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
            if part.name == "1":
                time.sleep(0.05)
            return slow(self, part, on_tokens)

    def start(number: int) -> Engine:
        engine = Slow(engines)
        with engines.lock:
            engines.alive.add(engine)
        return engine

    Schedule(parts(2), start, engines.keep, ignore, ignore).run(2)
    assert sorted(engines.kept) == ["0", "1"]


def test_the_run_continues_without_an_engine_that_never_starts() -> None:
    """The cluster has room for one engine; the other's thread gives up without an error."""
    engines = Engines()
    tried = threading.Event()
    attempts = 0

    class Never(Engine):
        def load(self) -> None:
            nonlocal attempts
            attempts += 1
            if attempts == ATTEMPTS:
                tried.set()
            raise EngineLostError(RcdiagError("no room"))

    class Waits(Engine):
        def score(self, part: TablePart, on_tokens: OnTokens) -> ScoredPart:
            assert tried.wait(LIMIT)
            return super().score(part, on_tokens)

    def start(number: int) -> Engine:
        return (Never if number else Waits)(engines)

    said: list[str] = []
    Schedule(parts(3), start, engines.keep, ignore, said.append).run(2)
    assert engines.kept == list("012")
    assert attempts == ATTEMPTS


def test_an_engine_that_is_still_starting_at_the_end_is_closed() -> None:
    engines = Engines()
    closed = threading.Event()

    class Pending(Engine):
        def load(self) -> None:
            assert closed.wait(LIMIT), "nobody closed this engine"
            raise EngineLostError(RcdiagError("killed by signal 9"))

        def close(self) -> None:
            closed.set()

    def start(number: int) -> Engine:
        return (Pending if number else Engine)(engines)

    Schedule(parts(3), start, engines.keep, ignore, ignore).run(2)
    assert sorted(engines.kept) == list("012")


def test_the_run_fails_if_no_engine_starts() -> None:
    class Never(Engine):
        def load(self) -> None:
            raise EngineLostError(RcdiagError("no room"))

    with pytest.raises(RcdiagError, match="no room"):
        Schedule(parts(3), lambda number: Never(Engines()), ignore, ignore, ignore).run(2)
