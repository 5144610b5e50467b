"""The functions of `import rcdiag`: what a user names (paths, policies, presets) -> a result.

Each command of the command line is a call of one of them; its options are their keywords.
"""

from __future__ import annotations

from typing import Any

from rcdiag.results.show import draw_with


def _draw(result: Any, name: str | None, width: float | None) -> Any:
    from rcdiag.pages.plot import plot  # late: with it come all figures

    return plot(result, name, width)


draw_with(_draw)
