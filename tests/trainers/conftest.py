"""The command line in this process, from the tests of the commands."""

from __future__ import annotations

from tests.cli.conftest import rcdiag

__all__ = ["rcdiag"]
