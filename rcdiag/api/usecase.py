"""Use cases check everything, describe what would run, and only then run it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from rcdiag.extras import saying_what_to_install
from rcdiag.table.remote import NotFetchedError, without_fetching
from rcdiag.url_secrets import remember_secrets, without_secrets

P = ParamSpec("P")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)

# A use case checks, yields the description of what would run, once, then runs and returns.
Steps = Generator[str, None, R]


class UseCase(Protocol[P, Result]):
    """A function of the API; `dry_run` takes the same arguments."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run the use case."""
        ...

    def dry_run(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Check everything that can be checked without running it, and say what would run.

        Files behind a URL are not fetched: only their number and size are reported.
        """
        ...


def usecase(function: Callable[P, Steps[R]]) -> UseCase[P, R]:
    """Make a function of the API, with its dry run, from the steps of a use case."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        remember_secrets(*args, *kwargs.values())
        steps = function(*args, **kwargs)
        with saying_what_to_install():
            next(steps)
            try:
                next(steps)
            except StopIteration as end:
                return cast(R, end.value)
        raise AssertionError(f"{function.__name__} describes twice what it would run")

    @functools.wraps(function)
    def dry_run(*args: P.args, **kwargs: P.kwargs) -> str:
        remember_secrets(*args, *kwargs.values())
        steps = function(*args, **kwargs)
        try:
            with without_fetching(), saying_what_to_install():
                return without_secrets(next(steps))
        except NotFetchedError as described:
            return without_secrets(str(described))
        finally:
            steps.close()

    made = cast(Any, run)
    # A caller sees the type of the result, not of the steps.
    signature = inspect.signature(function)
    returned = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    made.__signature__ = signature.replace(return_annotation=returned)
    made.dry_run = dry_run
    return cast(UseCase[P, R], made)
