"""Trainers without a package are read from a checkout that the user names.

Only the definitions that a comparison needs are executed, on CPU, so that nothing of a training
stack has to be installed.
"""

from __future__ import annotations
import __future__

import ast
import os
import sys
import types
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Checkout:
    """The public repository of a trainer, at the commit that rcdiag follows."""

    trainer: str
    variable: str  # environment variable with the folder of the checkout
    url: str
    commit: str

    @property
    def folder(self) -> str:
        return os.environ.get(self.variable, "")

    @property
    def needed(self) -> pytest.MarkDecorator:
        """Skip a test where there is no checkout, and say how to get one."""
        return pytest.mark.skipif(
            not self.folder,
            reason=f"{self.trainer} is on no package index: git clone {self.url}, then export "
            f"{self.variable}=/path/to/it (rcdiag follows its commit {self.commit})",
        )

    def definitions(
        self, file: str, names: Collection[str], space: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Execute named functions, classes and constants of a file; `space` holds their globals."""
        tree = ast.parse(Path(self.folder, file).read_text())
        body = [node for node in tree.body if _name(node) in names]
        missing = set(names) - {_name(node) for node in body}
        assert not missing, f"{file} has no {', '.join(sorted(missing))}"
        module = types.ModuleType(f"{self.trainer}_{Path(file).stem}".replace("-", "_"))
        vars(module).update(space or {})
        sys.modules[module.__name__] = module  # where a dataclass looks up its annotations
        flags = __future__.annotations.compiler_flag  # annotations name types that are not imported
        code = compile(ast.Module(body, []), file, "exec", flags, dont_inherit=True)
        exec(code, vars(module))
        return vars(module)


def _name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


PRIME_RL = Checkout(
    "prime-rl", "RCDIAG_PRIME_RL", "https://github.com/PrimeIntellect-ai/prime-rl", "559b4477"
)
OPEN_INSTRUCT = Checkout(
    "open-instruct", "RCDIAG_OPEN_INSTRUCT", "https://github.com/allenai/open-instruct", "e6c3044a"
)
ROLL = Checkout("ROLL", "RCDIAG_ROLL", "https://github.com/alibaba/ROLL", "8eb27cc2")
SLIME = Checkout("slime", "RCDIAG_SLIME", "https://github.com/THUDM/slime", "624b824a8")
AREAL = Checkout("AReaL", "RCDIAG_AREAL", "https://github.com/areal-project/AReaL", "cbff54d6")
MILES = Checkout("miles", "RCDIAG_MILES", "https://github.com/radixark/miles", "31f1ca96")


@cache
def taken(
    checkout: Checkout, file: str, names: tuple[str, ...], **space: Any
) -> types.SimpleNamespace:
    """Return definitions of a file as attributes; they are executed once."""
    return types.SimpleNamespace(**checkout.definitions(file, names, space))


# The weights of verl #2953 are in no package: it came between 0.5.0 and 0.6.0.
VERL = Checkout("verl", "RCDIAG_VERL", "https://github.com/verl-project/verl", "b8dc5377c")
