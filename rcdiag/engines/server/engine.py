"""Score the rows of a table by requests to a server, several at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.engines.backend import Progress
from rcdiag.engines.padded_batches import gather_scores, whole_sequences
from rcdiag.engines.server.address import MOST_REQUESTS
from rcdiag.engines.server.client import Unavailable
from rcdiag.engines.server.connection import APIS, connect, wait_for
from rcdiag.engines.server.pace import Pace
from rcdiag.engines.server.served import answer_size, server_changed
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError
from rcdiag.statistics.extremes import SMALLEST_LOG_PROB

if TYPE_CHECKING:
    from rcdiag.table.trajectories import Scores, Trajectories


class ServerEngine:
    """A served model, which scores one row per request, in several threads."""

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.client, self.served = connect(spec, lambda words: None)  # planning said it already
        self.api = APIS[self.served.api]
        self.pace = Pace(spec.options.get("concurrency", MOST_REQUESTS))

    def provenance(self) -> dict[str, Any]:
        """Return the server's provenance, as far as it reports any; the device is unknown."""
        return self.served.provenance()

    def score(self, trajectories: Trajectories, progress: Progress) -> Scores:
        """Score the response tokens of rows; each answer is checked against the tokens sent."""
        tokens, starts = whole_sequences(trajectories)
        numbers = trajectories.row
        rows = np.flatnonzero(trajectories.response_ids.lengths > 0).tolist()

        def score_row(row: int) -> NDArray[np.float32]:
            try:
                return self._score(tokens[row].tolist(), int(starts[row]))
            except RcdiagError as error:
                what = self.client.quoted(error.message)
                raise RcdiagError(f"{self._row(numbers[row])}: {what}", error.hint) from None

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
            if not is_number or not SMALLEST_LOG_PROB <= value <= 0.0:
                raise RcdiagError(
                    f"the log-prob of token {ids[position]} at position {position} is {value!r}",
                    hint="a log-prob is a finite number of at most 0: look at the server's log",
                )
        return np.array(values, np.float32)[:, np.newaxis]

    def _each(
        self,
        rows: Sequence[int],
        work: Callable[[int], NDArray[np.float32]],
        numbers: NDArray[np.int64],
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield rows with their scores as they arrive; a failed row is requested again.

        `numbers` are the rows' numbers in the table, for error messages.
        """
        waiting, first_failure = deque(rows), dict[int, float]()
        running: dict[Future[NDArray[np.float32]], int] = {}
        pool = ThreadPoolExecutor(self.pace.most)
        try:
            while waiting or running:
                while waiting and len(running) < self.pace.requests:
                    row = waiting.popleft()
                    running[pool.submit(work, row)] = row
                failed: tuple[int, Unavailable] | None = None
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    row = running.pop(future)
                    try:
                        values = future.result()
                    except Unavailable as error:
                        failed = row, error
                        waiting.appendleft(row)
                        first_failure.setdefault(row, time.monotonic())
                    else:
                        self.pace.succeeded()
                        yield row, values
                if failed is not None:
                    row, failure = failed
                    since, who = first_failure[row], self._row(numbers[row])
                    served = wait_for(self.client, self.spec, self.pace, failure, since, who)
                    if served.fingerprint != self.served.fingerprint:
                        raise server_changed(self.served, served)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _row(self, number: int) -> str:
        return f"policy `{self.spec.name}`: row {number}"
