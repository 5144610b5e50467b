"""`rcdiag.load_result` and `rcdiag.report`: stored results, and pages and figures of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rcdiag.errors import RcdiagError
from rcdiag.files import check_outputs, write_text
from rcdiag.results import ConvertResult, Document, from_json


def load_result(source: str | Path | TextIO) -> Document:
    """Read a result document back: a file, an open stream, or the JSON text itself."""
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return from_json(source, "result")
    name = os.fspath(source) if isinstance(source, (str, Path)) else getattr(source, "name", "-")
    try:
        text = Path(name).read_text() if isinstance(source, (str, Path)) else source.read()
    except (OSError, UnicodeDecodeError) as error:
        raise RcdiagError(f"{name}: cannot be read ({error})", "give a result file") from error
    return from_json(text, name)


def report(
    results: Document | str | Path | Sequence[Document | str | Path],
    html: str | Path | None = None,
    *,
    plots: str | Path | None = None,
    force: bool = False,
) -> list[Path]:
    """Write a result as a self-contained page, as figures, or both; give the paths of the files.

    Args:
        results: the result or its file; a list of one is taken too, and a page shows one result.
        html: the page to write.
        plots: the folder for the figures, each as PNG and SVG.
        force: overwrite what is there.
    """
    listed = [results] if isinstance(results, (Document, str, Path)) else list(results)
    if len(listed) != 1:
        raise RcdiagError(
            f"{len(listed)} results for one page", hint="call report once for each result"
        )
    page_path = None if html is None else Path(html)
    folder = None if plots is None else Path(plots)
    check_outputs([page_path, folder], force=force)
    (first,) = listed
    result = load_result(first) if isinstance(first, (str, Path)) else first
    if isinstance(result, ConvertResult):
        raise RcdiagError(
            "a conversion has no page", hint=f"rcdiag score {result.output} --html FILE makes one"
        )
    written = []
    if page_path is not None:
        from rcdiag.pages.page import page

        write_text(page_path, page(result))
        written.append(page_path)
    if folder is not None:
        from rcdiag.pages.save import save_figures

        written += save_figures(result, folder)
    return written
