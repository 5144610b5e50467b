"""The functions in docs/recording.md, read from the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any


def functions_of(page: str | Path, names: dict[str, Any]) -> dict[str, Any]:
    """Execute the functions and constants in a page's Python; `names` are their globals."""
    space = dict(names)
    for block in re.findall(r"```python\n(.*?)```", Path(page).read_text(), re.DOTALL):
        body = [node for node in ast.parse(block).body if _is_kept(node)]
        exec(compile(ast.Module(body, []), str(page), "exec"), space)
    return space


def _is_kept(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Dict)
    return isinstance(node, ast.FunctionDef)
