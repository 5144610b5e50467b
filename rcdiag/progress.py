"""Progress of long work. The library prints nothing; the caller passes a listener."""

from __future__ import annotations

from pathlib import Path


class Progress:
    """A listener that ignores everything: override the methods whose messages you want to show."""

    def say(self, text: str) -> None:
        """Receive a sentence about what happens now, or about what was left out."""

    def tokens(self, policy: str, scored: int, total: int) -> None:
        """Receive how many of `total` tokens an engine has scored for `policy` so far.

        The first call is made once the policy's model is loaded.
        """

    def converted(self, file: str, number: int, files: int, rows: int, tokens: int) -> None:
        """Receive the progress of a conversion: it reads `file`, the `number`-th of `files` files.

        `rows` and `tokens` are the numbers read so far from all files; `tokens` are response
        tokens, or those of all records while their names are not known yet.
        """

    def wrote(self, path: Path) -> None:
        """Receive the path of a file that was written."""


SILENT = Progress()
