"""Progress of long work. The library prints nothing; a caller passes a listener."""

from __future__ import annotations

from pathlib import Path


class Progress:
    """A listener that ignores everything: override the methods that you want to show."""

    def say(self, text: str) -> None:
        """Take a sentence about what happens now, or about what was left out."""

    def tokens(self, policy: str, scored: int, total: int) -> None:
        """Take the number of tokens of `total` that an engine has scored for `policy` so far.

        The first call is made once the policy's model is loaded.
        """

    def converted(self, file: str, number: int, files: int, rows: int, tokens: int) -> None:
        """Take how far the conversion of a dump is: it reads `file`, the `number`-th of `files`.

        `rows` and `tokens` are those that were read so far, of all files: tokens of responses, or
        of records whose names are not known yet.
        """

    def wrote(self, path: Path) -> None:
        """Take the path of a file that is complete."""


SILENT = Progress()
