"""The command line with small parts, so that a short table has many."""

from __future__ import annotations

from cli import main

_run = main._run


def _with_small_parts() -> None:
    import rcdiag.engines.scoring

    rcdiag.engines.scoring.TOKENS_PER_PART = 2048
    _run()


if __name__ == "__main__":
    main._run = _with_small_parts
    main.main()
