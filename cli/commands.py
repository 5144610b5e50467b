"""What each command does: call the API, write files, show the result and set the exit code.

Slow imports are inside of functions, so that `--help` and refusals are fast.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rcdiag
from cli.parameters import function_of
from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from rcdiag.results import Document

Values = dict[str, Any]  # the values of all parameters of a command, by name


def measure(command: str, given: Values) -> None:
    """Run `score`, `compare`, `diagnose`, `sweep` or `replay`; write, show, set the exit code."""
    from cli.outputs import Outputs, chosen
    from cli.terminal.screen import Screen

    emitted = given.get("emit")
    if given["json"] and emitted:
        raise RcdiagError("--json and --emit both want stdout", hint="--result FILE --emit ...")
    screen = Screen.of(given)
    outputs = Outputs.checked(given)
    keywords = _keywords(command, given)
    sources = keywords.pop("sources", None) or [keywords.pop("source")]
    if command == "score" and not (given["json"] or outputs.for_readers or given["sequences"]):
        # The screen does not show sequences and texts, which only files for readers contain.
        keywords |= {"sequences": None, "include_text": given["include_text"] or False}
    run: Callable[..., Any] = chosen(getattr(rcdiag, command), given["dry_run"])
    with screen.progress() as progress:
        document = run(*sources, **keywords, progress=progress)
    if isinstance(document, str):
        screen.say(document)
        return
    outputs.write(document, screen, progress.written)
    if emitted:
        screen.show_text(document, rcdiag.emit(document, emitted, given["candidate"]))
    else:
        screen.show(document, has_page=outputs.html is not None)
    screen.exit(document)


def convert(command: str, given: Values) -> None:
    """Run `convert`, and show what was changed and what is missing."""
    from cli.outputs import chosen
    from cli.terminal.screen import Screen

    screen = Screen.of(given)
    with screen.progress() as progress:
        run = chosen(rcdiag.convert, given["dry_run"])
        result = run(**_keywords(command, given), progress=progress)
    if isinstance(result, str):
        screen.say(result)
        return
    screen.show(result)
    screen.wrote(Path(given["output"]))


def report(command: str, given: Values) -> None:
    """Run `report`: write the requested pages, and show the stored results."""
    from cli.outputs import Outputs
    from cli.process import resume_collection
    from cli.terminal.screen import Screen

    Outputs.checked(given)
    for option, asked in (("--against", given["against"]), ("--no-host", not given["host"])):
        if asked and given["html"] is None:
            raise RcdiagError(f"{option} is for pages", hint="give --html FILE.html")
    sources = given["results"]
    results = [rcdiag.load_result(sys.stdin if one == "-" else Path(one)) for one in sources]
    if given["json"] and len(results) > 1:
        raise RcdiagError(f"--json prints one document, not {len(results)}")
    screen = Screen.of(given)
    resume_collection()
    with _drawable(sources, results, verbose=given["verbose"]):
        if any(given[name] is not None for name in ("html", "plots", "notebook")):
            # A notebook loads results from their files; one from stdin is passed itself.
            files = [
                result if source == "-" else source
                for source, result in zip(sources, results, strict=True)
            ]
            keywords = {**_keywords(command, given), "results": files, "force": True}
            for path in rcdiag.report(**keywords):
                screen.wrote(path)
        second = [] if given["json"] else [rcdiag.load_result(one) for one in given["against"]]
        for name, documents in (("before", results), ("after", second)):
            for document in documents:
                if second or len(results) > 1:
                    screen.heading(name if second else document.kind)
                screen.show(document, has_page=given["html"] is not None)
    for document in results:
        screen.exit(document)


@contextlib.contextmanager
def _drawable(sources: list[str], results: Sequence[Document], *, verbose: bool) -> Iterator[None]:
    """Refuse documents whose values cannot be drawn; with `verbose` show the traceback."""
    from rcdiag.api.report import NOT_DRAWN, drawable  # imports every kind of result

    try:
        with drawable(sources, results):
            yield
    except RcdiagError as error:
        if verbose and isinstance(error.__cause__, NOT_DRAWN):
            raise error.__cause__ from None
        raise


def explain(command: str, given: Values) -> None:
    """Run `explain`: show an entry, or all names with a line each."""
    answer = rcdiag.explain() if given["name"] is None else rcdiag.explain(given["name"])
    if given["json"]:
        from cli.terminal.console import write_out
        from rcdiag.api.explain import document

        write_out(document(answer))
    else:
        from cli.terminal.explain import draw_explanation

        draw_explanation(answer)


def _keywords(command: str, given: Values) -> Values:
    """Return the values that the function of the API accepts."""
    return {name: given[name] for name in function_of(command).parameters if name in given}
