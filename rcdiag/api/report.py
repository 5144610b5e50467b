"""`rcdiag.load_result` and `rcdiag.report`: load stored results; make pages and figures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from msgspec import structs

from rcdiag.errors import RcdiagError, setting
from rcdiag.files import check_outputs, without_controls, write_text
from rcdiag.results import ConvertResult, Document, Result, from_json
from rcdiag.results.document import odd_value
from rcdiag.url_secrets import remember_secrets


def load_result(source: str | Path | TextIO) -> Document:
    """Read a result document back: a file, an open stream, or the JSON text itself."""
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return from_json(source, "result")
    remember_secrets(source)
    name = os.fspath(source) if isinstance(source, (str, Path)) else getattr(source, "name", "-")
    try:
        text = (
            Path(name).read_text(encoding="utf-8")
            if isinstance(source, (str, Path))
            else source.read()
        )
    except FileNotFoundError as error:
        raise RcdiagError(
            f"{name}: no such file", "give the JSON file that --result wrote"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RcdiagError(
            f"{name}: not a result document (JSON): {error}",
            "`rcdiag score DUMP --result FILE.json` writes one, as every command does",
        ) from error
    return from_json(text, name)


# Errors that a complete document can raise if its values make no sense.
NOT_DRAWN = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)


@contextlib.contextmanager
def drawable(sources: Sequence[str], results: Sequence[Document] = ()) -> Iterator[None]:
    """Refuse results that are complete but have values that cannot be drawn.

    The error names the files, and the field that does not fit its description, if one is found.
    """
    try:
        yield
    except NOT_DRAWN as error:
        faults = (fault for result in results if (fault := odd_value(result)) is not None)
        reason = next(iter(str(error).splitlines()), "")
        why = next(faults, f"{type(error).__name__}: {reason}")
        raise RcdiagError(
            f"{', '.join(sources)}: holds values that cannot be drawn ({why})",
            hint="make the result again with --result FILE; if rcdiag wrote it like this, this is "
            "a bug of rcdiag: `rcdiag report -v` shows where",
        ) from error


Results = Document | str | Path | Sequence[Document | str | Path]


def report(
    results: Results,
    html: str | Path | None = None,
    *,
    against: Results = (),
    plots: str | Path | None = None,
    notebook: str | Path | None = None,
    figures: Sequence[str] = (),
    width: float | None = None,
    host: bool = True,
    force: bool = False,
) -> list[Path]:
    """Make a page, figures or a notebook of results, without the data and without torch.

    Returns the paths of the files.

    Args:
        results: results of one dump, or their files; at most one of each command; `-` is stdin.
        html: self-contained HTML page to write.
        against: result of a second dump: the page says what changed.
        plots: folder for figures (PDF, SVG, PNG, CSV).
        notebook: notebook to write: a cell for each figure, already drawn. It loads the result
            files; a result given as an object is saved beside it.
        figures: figures to write into the folder of `plots`; all that apply by default.
        width: width of figures in inches, 1 or more: 3.3 for a column, 6.9 for a page.
        host: keep the names of machines in the page.
        force: overwrite outputs.
    """
    page_path = None if html is None else Path(html)
    folder = None if plots is None else Path(plots)
    notebook_path = None if notebook is None else Path(notebook)
    check_outputs([page_path, notebook_path], folder=folder, force=force)
    if folder is not None:
        check_figures(figures, width)
    shown, other = _loaded(results), _loaded(against)
    if not host:
        shown, other = ([_without_hosts(result) for result in some] for some in (shown, other))
    written = []
    with drawable(_sources(results) + _sources(against), [*shown, *other]):
        if page_path is not None:
            from rcdiag.pages.page import page

            text = page(shown, against=other, explain=explanation)
            write_text(page_path, without_controls(text))
            written.append(page_path)
        if folder is not None:
            from rcdiag.pages.save import save_figures

            for result in shown:
                written += save_figures(result, folder, only=figures, width=width)
        if notebook_path is not None:
            written += _notebook(notebook_path, results, shown, force)
    return written


def check_figures(figures: Sequence[str], width: float | None) -> None:
    """Refuse unknown names of figures, and widths too small to draw in."""
    from rcdiag.pages.figures import FIGURES

    for name in figures:
        if not name.startswith("family-"):  # of a sweep
            FIGURES.find(name, "--figure")
    if width is not None and not width >= 1:
        raise RcdiagError(f"{setting('width', width)}: too narrow", hint="take 1 inch or more")


def _without_hosts(result: Result) -> Result:
    """Return a result without the names of the machines that computed it."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(item) for name, item in value.items() if name != "host"}
        return [without(item) for item in value] if isinstance(value, list) else value

    return structs.replace(result, provenance=without(result.provenance))


def _listed(results: Results) -> list[Document | str | Path]:
    return [results] if isinstance(results, (Document, str, Path)) else list(results)


def _sources(results: Results) -> list[str]:
    """Name the file of each result, or its command where it has none."""

    def name(item: Document | str | Path) -> str:
        if isinstance(item, Document):
            return f"a result of rcdiag {item.kind}"
        # The string may be the document itself.
        return "result" if str(item).lstrip().startswith("{") else os.fspath(item)

    return list(map(name, _listed(results)))


def _notebook(path: Path, results: Results, loaded: Sequence[Result], force: bool) -> list[Path]:
    """Write the notebook, and those results that it loads and that have no file yet."""
    from rcdiag.pages.notebook import notebook

    files: list[tuple[Result, str]] = []
    written = []
    for item, result in zip(_listed(results), loaded, strict=True):
        if isinstance(item, Document) or not Path(item).is_file():
            own = path.with_name(f"{path.stem}_{result.kind}.json")
            result.save(own, force=force)
            written.append(own)
        else:
            own = Path(item)
        files.append((result, os.path.relpath(own, path.parent)))
    write_text(path, notebook(files))
    return [*written, path]


def _loaded(results: Results) -> list[Result]:
    """Load the results that are given as files; refuse conversions, which have no page."""
    loaded: list[Result] = []
    for item in _listed(results):
        result = load_result(item) if isinstance(item, (str, Path)) else item
        if isinstance(result, ConvertResult):
            raise RcdiagError(
                "a conversion has no page",
                hint=f"rcdiag score {result.output} --html FILE makes one",
            )
        loaded.append(result)
    return loaded


def explanation(name: str) -> dict[str, str] | None:
    """Return what `rcdiag explain` says about a name, part by part; None for unknown names."""
    from rcdiag.glossary import find

    if name.startswith("rcdiag "):  # a command line, not a name
        return None
    entry = find(name)
    if entry is None:
        return None
    parts = {
        "what": entry.what,
        "formula": entry.formula,
        "direction": entry.direction,
        "unit": entry.units,
        "healthy": entry.healthy,
        **{name: words for name, words in entry.parts.items() if name in ("shows", "fix")},
    }
    return {heading: words for heading, words in parts.items() if words}
