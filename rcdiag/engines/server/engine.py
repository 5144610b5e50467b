"""Score the rows of a table by requests to a server, as many at a time as it can take."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.engines.backend import Progress
from rcdiag.engines.padded_batches import gather_scores, whole_sequences
from rcdiag.engines.server import MOST_REQUESTS, PATIENCE_SECONDS, connect
from rcdiag.engines.server.client import Unavailable
from rcdiag.engines.server.served import answer_size, apis, identify
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Scores, Trajectories

FIRST_REQUESTS = 4  # at a time; doubled while all goes well, halved where the server is busy
SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds after a failure, doubled with each one


class ServerEngine:
    """One served model, which is asked for a row at a time, by several threads."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.client, self.served = connect(spec)
        self.api = apis()[self.served.api]
        self.patience = float(spec.options.get("patience", PATIENCE_SECONDS))
        self.requests = min(FIRST_REQUESTS, self._most_requests)

    @property
    def _most_requests(self) -> int:
        return int(self.spec.options.get("concurrency", MOST_REQUESTS))

    def provenance(self) -> dict[str, Any]:
        """Return what the server tells of itself; on what device it computes it does not."""
        return self.served.provenance()

    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        """Score the response tokens of some rows; each answer is checked against what was sent."""
        tokens, starts = whole_sequences(trajectories)
        numbers = trajectories.row
        rows = np.flatnonzero(trajectories.response_ids.lengths > 0).tolist()

        def score_row(row: int) -> NDArray[np.float32]:
            return self._score(tokens[row].tolist(), int(starts[row]))

        scores: list[NDArray[np.float32] | None] = [None] * len(tokens)
        for row, values in self._each(rows, score_row, numbers):
            scores[row] = values
            progress(len(tokens[row]))
        return gather_scores(trajectories, scores, entropy=False, top_k=0)

    def _score(self, ids: list[int], start: int) -> NDArray[np.float32]:
        """Return the log-probs of `ids[start:]`, [tokens, 1], in nats."""
        body = self.api.request(self.served, ids, start)
        answer = self.client.ask(self.api.path, body, answer_size(ids))
        values = self.api.read(self.served, answer, ids, start)
        for position, value in enumerate(values, start):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not -math.inf < value <= 0.0:
                raise RcdiagError(
                    f"the log-prob of token {ids[position]} at position {position} is {value}",
                    hint="a log-prob is a finite number of at most 0: look at the server's log",
                )
        return np.array(values, np.float32)[:, np.newaxis]

    def _each(
        self,
        rows: Sequence[int],
        work: Callable[[int], NDArray[np.float32]],
        numbers: NDArray[np.int64],
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield rows with their scores as they come; one that fails is asked for again.

        How many requests a server can take nobody tells: it is found out by doubling. `numbers` are
        those of the rows in the table, for errors.
        """
        waiting, since, failures, successes = deque(rows), dict[int, float](), 0, 0
        running: dict[Future[NDArray[np.float32]], int] = {}
        pool = ThreadPoolExecutor(self._most_requests)
        try:
            while waiting or running:
                while waiting and len(running) < self.requests:
                    row = waiting.popleft()
                    running[pool.submit(work, row)] = row
                failed: tuple[int, Unavailable] | None = None
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    row = running.pop(future)
                    try:
                        values = future.result()
                    except RcdiagError as error:
                        raise RcdiagError(
                            self._at(numbers[row], error.message), error.hint
                        ) from error
                    except Unavailable as error:
                        waiting.appendleft(row)
                        failed = int(numbers[row]), error
                        began = since.setdefault(row, time.monotonic())
                        self._give_up_after(began, *failed)
                        continue
                    failures, successes = 0, successes + 1
                    yield row, values
                if failed is not None:
                    failures, successes = failures + 1, 0
                    self.requests = max(self.requests // 2, 1)
                    self._wait(*failed, failures)
                elif successes >= self.requests:
                    self.requests = min(2 * self.requests, self._most_requests)
                    successes = 0
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _at(self, number: int, what: str) -> str:
        return f"policy `{self.spec.name}`: row {number}: {what}"

    def _wait(self, number: int, failed: Unavailable, failures: int) -> None:
        """Wait until the server answers again, and refuse it if it serves something else then."""
        began = time.monotonic()
        while True:
            pause = min(SHORTEST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
            time.sleep(max(pause, failed.wait))
            try:
                served = identify(self.client, self.spec)
                break
            except Unavailable as error:
                failed, failures = error, failures + 1
                self._give_up_after(began, number, error)
        if served.fingerprint != self.served.fingerprint:
            raise RcdiagError(
                f"policy `{self.spec.name}`: {self.client.address} was restarted, and serves "
                f"something else now ({served.model}, {served.settings}) than before "
                f"({self.served.model}, {self.served.settings})",
                hint="the same command scores all rows with what is served now",
            )

    def _give_up_after(self, began: float, number: int, error: Unavailable) -> None:
        if time.monotonic() - began > self.patience:
            raise RcdiagError(
                self._at(
                    number, f"no answer from {self.client.address} in {self.patience:g} s: {error}"
                ),
                hint="the same command goes on from the finished parts once the server is up; "
                "patience= waits longer",
            )
