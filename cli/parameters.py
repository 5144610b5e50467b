"""The parameters of the API's functions, which become the options of commands.

Name, type, default and meaning are defined once, in the signature and docstring of the function in
`rcdiag/api/<command>.py`. They are read from its source, because importing it would load numpy and
Arrow, for which `--help` would have to wait.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import resources
from typing import Any

from msgspec import Struct

# `    name: text` under `Args:`, with continuation lines that are indented deeper.
ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
REQUIRED: Any = ...  # stands for the default of a parameter without one


class Parameter(Struct, frozen=True):
    """A parameter of a function, read from its signature and docstring."""

    name: str
    type: type  # of one value: bool, int, float or str
    default: Any
    says: str
    choices: tuple[str, ...] = ()  # the values of a `Literal`

    @property
    def sentence(self) -> str:
        """The first sentence of its description, for the list of options."""
        first = self.says.split(". ")[0].rstrip(".")
        return first[:1].upper() + first[1:]


class Function(Struct, frozen=True):
    """A function of the API, read from its source."""

    says: str  # the first line of its docstring
    parameters: dict[str, Parameter]


@cache
def function_of(command: str) -> Function:
    """Read the function of a command, `rcdiag.api.<command>.<command>`, from its source."""
    text = resources.files("rcdiag.api").joinpath(f"{command}.py").read_text(encoding="utf-8")
    defined = {
        node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)
    }
    function = defined[command]  # of overloads the last, which is the function itself
    doc = ast.get_docstring(function) or ""
    says = {name: " ".join(words.split()) for name, words in ARGUMENT.findall(doc)}
    of_place, of_keywords = function.args.args, function.args.kwonlyargs
    if function.args.vararg is not None:
        of_place = [*of_place, function.args.vararg]
    without = len(of_place) - len(function.args.defaults)
    defaults = [*[None] * without, *function.args.defaults, *function.args.kw_defaults]
    parameters = {
        argument.arg: _parameter(argument, default, says.get(argument.arg, ""))
        for argument, default in zip([*of_place, *of_keywords], defaults, strict=True)
    }
    return Function(says=doc.partition("\n")[0], parameters=parameters)


def _parameter(argument: ast.arg, default: ast.expr | None, says: str) -> Parameter:
    """Read a parameter; its type is that on the command line, str if the annotation has it."""
    assert argument.annotation is not None
    nodes = list(ast.walk(argument.annotation))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    allowed = [one for one in (str, bool, float, int) if one.__name__ in names]
    literals = [
        ast.literal_eval(node.slice)
        for node in nodes
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"
    ]
    return Parameter(
        name=argument.arg,
        type=allowed[0] if allowed else str,
        default=REQUIRED if default is None else ast.literal_eval(default),
        says=says,
        choices=tuple(literals[0]) if literals else (),
    )
