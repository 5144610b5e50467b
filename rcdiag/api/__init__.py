"""The functions of `import rcdiag`: from paths, names of policies and presets to a result.

Each command of the command line calls one of them with its options as keywords.
"""

from __future__ import annotations

from typing import Any

from rcdiag.results.show import draw_with


def _draw(result: Any, name: str | None, width: float | None) -> Any:
    from rcdiag.pages.plot import plot  # late: with it come all figures

    return plot(result, name, width)


draw_with(_draw)
