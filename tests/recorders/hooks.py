"""The functions that docs/recording.md shows, taken out of the page as they stand there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any


def functions_of(page: str | Path, names: dict[str, Any]) -> dict[str, Any]:
    """All functions and plain constants of a page's Python; `names` are what they use besides."""
    space = dict(names)
    for block in re.findall(r"```python\n(.*?)```", Path(page).read_text(), re.DOTALL):
        body = [node for node in ast.parse(block).body if _is_kept(node)]
        exec(compile(ast.Module(body, []), str(page), "exec"), space)
    return space


def _is_kept(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Dict)
    return isinstance(node, ast.FunctionDef)
