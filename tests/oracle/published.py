"""Functions of trainers from their published wheels, without their modules' imports.

A wheel is downloaded once per run, without its dependencies. What is executed is named function by
function, method by method, or statement by statement of a function too large to run.
"""

from __future__ import annotations

import ast
import io
import math
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

# A wheel may need another Python or system: nothing of it is installed.
_ANY_PYTHON = ("--only-binary", ":all:", "--python-version", "3.12")
_NEWER_PYTHON = ("--only-binary", ":all:", "--python-version", "3.14")
_LINUX = (
    *("--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp"),
    *("--platform", "manylinux1_x86_64"),
)
_NEWER_LINUX = (*_LINUX[:-1], "manylinux_2_34_x86_64")


@cache
def wheel(package: str, version: str) -> zipfile.ZipFile:
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        platforms = {"openrlhf": _LINUX, "nemo-gym": _NEWER_PYTHON, "sglang": _NEWER_LINUX}
        platform = platforms.get(package, _ANY_PYTHON)
        subprocess.run(
            [*command, *platform, f"{package}=={version}"], check=True, capture_output=True
        )
        return zipfile.ZipFile(io.BytesIO(next(Path(folder).glob("*.whl")).read_bytes()))


@cache
def module(package: str, version: str, path: str) -> ast.Module:
    """Return the syntax tree of a file; `path` is relative to the trainer's repository."""
    files = wheel(package, version)
    (name,) = (name for name in files.namelist() if name == path or name.endswith(f"/{path}"))
    return ast.parse(files.read(name).decode())


def space_of(**names: Any) -> dict[str, Any]:
    """Return globals for trainers' functions: torch, math, and the given names."""
    import torch

    return {"torch": torch, "math": math, "annotations": None, **names}


def execute(body: Sequence[ast.stmt], space: dict[str, Any]) -> dict[str, Any]:
    """Execute statements; annotations name types that are not imported, so they stay text."""
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    tree = ast.fix_missing_locations(ast.Module([future, *body], []))
    exec(compile(tree, "trainer", "exec"), space)
    return space


def functions(tree: ast.Module, names: Sequence[str], space: dict[str, Any]) -> SimpleNamespace:
    """Return functions and classes of a module."""
    wanted = [
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names
    ]
    assert len(wanted) == len(names), f"{names}: only {[node.name for node in wanted]}"
    return SimpleNamespace(**execute(wanted, space))


@cache
def method(tree: ast.Module, owner: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """Return the syntax tree of a method."""
    (found,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == owner
        for node in node.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )
    return found


def bare_class(tree: ast.Module, owner: str, names: Sequence[str], space: dict[str, Any]) -> Any:
    """Return a class with only these methods of the trainer's class."""
    body: list[ast.stmt] = [method(tree, owner, name) for name in names]
    shell = ast.ClassDef("Bare", [], [], body, [])
    return execute([shell], space)["Bare"]


@cache
def branches(function: ast.FunctionDef, test: str) -> list[ast.If]:
    """Return every `if` of a function whose test contains these words, in file order."""
    found = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If) and test in ast.unparse(node.test)
    ]
    return sorted(found, key=lambda node: node.lineno)


@contextmanager
def arithmetic(dtype: str) -> Iterator[Any]:
    """Run in float64: every `.float()` and new tensor of a trainer stays float64."""
    import torch

    wide = getattr(torch, dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(wide)
    try:
        with patch.object(torch.Tensor, "float", lambda tensor: tensor.to(wide)):
            yield wide
    finally:
        torch.set_default_dtype(before)
