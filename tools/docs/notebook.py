"""Run a notebook without a kernel: all cells in one namespace, with their outputs.

As a program, it runs the given notebooks and stores their outputs in them.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

Output = dict[str, Any]


def run_notebook(notebook: dict[str, Any]) -> tuple[list[list[Output]], int]:
    """Return the outputs of each code cell, and the number of figures drawn."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {"__name__": "__main__"}
    shown, figures = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            outputs = _run_cell("".join(cell["source"]), names)
            drawn = [plt.figure(number) for number in plt.get_fignums()]
            outputs += [{"display_data": {"image/png": _png(each)}} for each in drawn]
            figures += sum("image/png" in data for each in outputs for data in each.values())
            plt.close("all")
            shown.append([_stored(each) for each in outputs])
    return shown, figures


def _run_cell(source: str, names: dict[str, Any]) -> list[Output]:
    """Run statements, and show the value of a final expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, "cell", "exec"), names)
        value = (
            None
            if last is None
            else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        )
    outputs: list[Output] = [{"stream": out.getvalue()}] if out.getvalue() else []
    if value is not None:
        data = {"text/plain": repr(value)}
        html = value._repr_html_() if hasattr(value, "_repr_html_") else None
        if html is not None:
            data["text/html"] = html
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        outputs.append({"execute_result": data})
    return outputs


def _png(figure: Any) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=90, metadata={"Software": None})
    return base64.b64encode(stream.getvalue()).decode()


def _stored(output: Output) -> Output:
    """Return an output in the form that notebooks store."""
    ((kind, content),) = output.items()
    if kind == "stream":
        return {"output_type": "stream", "name": "stdout", "text": content.splitlines(True)}
    data = {
        mime: text if mime == "image/png" else text.splitlines(True)
        for mime, text in content.items()
    }
    stored: Output = {"output_type": kind, "data": data, "metadata": {}}
    return stored | ({"execution_count": None} if kind == "execute_result" else {})


def store_outputs(path: Path) -> None:
    """Run a notebook and write its outputs into its file."""
    notebook = json.loads(path.read_text())
    shown, _ = run_notebook(notebook)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(cells, shown, strict=True), 1):
        cell["execution_count"] = number
        for output in outputs:
            if "execution_count" in output:
                output["execution_count"] = number
        cell["outputs"] = outputs
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        store_outputs(Path(name))
