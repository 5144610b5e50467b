"""The result of `rcdiag convert`: what the table contains, and what was changed in the dump."""

from __future__ import annotations

import textwrap
from typing import Annotated

from rcdiag.results.compare import Joined
from rcdiag.results.doc import Anything, Doc
from rcdiag.results.show import WIDTH, KindName, Shown, Summary


class ConvertResult(Shown, frozen=True, kw_only=True):
    """The result of `rcdiag convert` describes the table and what was changed in the dump."""

    kind: KindName = "convert"
    output: Annotated[str, Doc("Path of the parquet file that a conversion wrote.")]
    format: Annotated[
        str,
        Doc(
            "The format of a dump's files; several formats are joined by ` + `.",
            example="rcdiag convert dump.jsonl -o dump.parquet --from FORMAT",
        ),
    ]
    files: Annotated[int, Doc("Number of files of a dump that were converted.", unit="files")]
    rows: Annotated[int, Doc("Number of rows of the table.", unit="rows")]
    tokens: Annotated[
        int,
        Doc("Number of response tokens of a converted table, masked or not.", unit="tokens"),
    ]
    columns: Annotated[list[str], Doc("Names of the columns of a converted table.")]
    policies: Annotated[list[str], Doc("Policies whose log-probs a converted table has.")]
    changes: Annotated[
        dict[str, int],
        Doc(
            "What a conversion dropped, shifted, filled or assumed, in sentences, with the number "
            "of affected rows; 0 means all."
        ),
    ]
    given: Annotated[
        dict[str, Anything],
        Doc(
            "Values that the user gave for what a dump lacks, by column.",
            example="rcdiag convert dump.jsonl -o dump.parquet --given temperature=0.7",
        ),
    ]
    dropped: Annotated[
        dict[str, str],
        Doc("Columns of a dump that a conversion left out, with the reason.", see=("changes",)),
    ]
    lacking: Annotated[
        dict[str, str],
        Doc("What a converted table lacks for score or replay, with how to get it."),
    ]
    joined: Joined

    def _summary(self) -> Summary:
        """Summarise what a conversion changed, and what the table lacks."""
        rows = [("changed", text, str(rows or "all")) for text, rows in self.changes.items()]
        rows += [("lacking", f"{name}: {way}", "") for name, way in self.lacking.items()]
        cut = [
            (what, textwrap.shorten(text, WIDTH, placeholder=" ..."), n) for what, text, n in rows
        ]
        policies = ", ".join(self.policies) or "no policies"
        about = f"{self.output}, {self.rows:,} rows, {self.tokens:,} tokens, {policies}"
        return Summary(about, ("", "what", "rows"), cut, "changes")
