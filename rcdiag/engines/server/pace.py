"""The number of simultaneous requests to a server, and the wait after a failed one."""

from __future__ import annotations

FIRST = 4  # requests at a time in the beginning
SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds


class Pace:
    """A limit on simultaneous requests that adapts, since servers do not report their capacity.

    It doubles when as many requests as it allows have succeeded, and a failure halves it. The pause
    after a failure doubles with each further failure until a request succeeds.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.requests = min(FIRST, most)
        self._successes = self._failures = 0

    def succeeded(self) -> None:
        self._successes, self._failures = self._successes + 1, 0
        if self._successes >= self.requests:
            self.requests = min(2 * self.requests, self.most)
            self._successes = 0

    def failed(self) -> None:
        self._successes, self._failures = 0, self._failures + 1
        self.requests = max(self.requests // 2, 1)

    @property
    def pause(self) -> float:
        """Return the seconds to wait after the last failure."""
        return min(SHORTEST_PAUSE * 2.0 ** max(self._failures - 1, 0), LONGEST_PAUSE)
