"""Which package may import which: the layers of the architecture, checked on the source."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = sorted((ROOT / "rcdiag").rglob("*.py"))
CLI = sorted((ROOT / "cli").rglob("*.py"))

# Every package imports only packages in lower lines.
LAYERS = (
    ("url_secrets",),
    ("errors",),
    ("entry", "files", "formats", "lazy", "progress", "registry", "extras"),
    ("losses", "results"),
    ("table",),
    ("logs", "statistics"),
    ("corrections", "engines", "recorders"),
    ("runners",),
    ("learning",),
    ("trainers",),
    ("diagnosis",),
    ("usecases",),
    ("pages",),
    ("glossary",),
    ("api",),
)
LAYER = {name: level for level, names in enumerate(LAYERS) for name in names}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return dotted names of all modules that a file imports, at its top or inside functions.

    For `import_module(f"rcdiag.glossary.{name}")` it is the text before the first brace.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            names.add(str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names.add(_beginning(node.args[0]).rstrip("."))
    return frozenset(names)


def _beginning(text: ast.expr) -> str:
    """Return a constant text, or the constant beginning of an f-string, else an empty text."""
    first = text.values[0] if isinstance(text, ast.JoinedStr) else text
    return str(first.value) if isinstance(first, ast.Constant) else ""


def importers(files: list[Path], *packages: str) -> list[str]:
    """Return the files that import one of the packages, or something in it."""
    return [
        name_of(path)
        for path in files
        if any(
            module == package or module.startswith(package + ".")
            for module in imports_of(path)
            for package in packages
        )
    ]


def files_outside(*folders: str) -> list[Path]:
    return [path for path in LIBRARY if not name_of(path).startswith(folders)]


def package_of(module: str) -> str:
    return module.split(".")[1]


def upward_imports(path: Path) -> list[str]:
    """Return imports of a file from another package of its own layer or from a higher layer."""
    package = path.relative_to(ROOT / "rcdiag").parts[0].removesuffix(".py")
    if package == "__init__":
        return []
    modules = {name for name in imports_of(path) if name.startswith("rcdiag.")}
    return [
        module
        for module in sorted(modules)
        if package_of(module) != package and LAYER[package_of(module)] >= LAYER[package]
    ]


def test_source_files_are_found():
    assert len(LIBRARY) > 100
    assert "rcdiag.errors.RcdiagError" in imports_of(ROOT / "rcdiag" / "results" / "document.py")
    assert "rcdiag.glossary" in imports_of(ROOT / "rcdiag" / "glossary" / "kinds.py")


def test_imports_by_name_are_detected(tmp_path):
    file = tmp_path / "late.py"
    file.write_text(
        "import importlib\n"
        "def plot(kind):\n"
        "    importlib.import_module('rcdiag.pages.plot')\n"
        "    importlib.import_module(f'rcdiag.usecases.{kind}.run')\n"
        "    importlib.import_module(kind)\n"
    )
    assert {"rcdiag.pages.plot", "rcdiag.usecases"} < imports_of(file)


@pytest.mark.parametrize("package", LAYER)
def test_a_package_imports_only_lower_packages(package):
    files = [
        p for p in LIBRARY if name_of(p).startswith((f"rcdiag/{package}/", f"rcdiag/{package}.py"))
    ]
    upward = {name_of(path): wrong for path in files if (wrong := upward_imports(path))}
    assert upward == {}


def test_every_package_has_a_layer():
    entries = {path.relative_to(ROOT / "rcdiag").parts[0].removesuffix(".py") for path in LIBRARY}
    assert entries - {"__init__"} <= set(LAYER)


def test_the_library_does_not_import_the_command_line():
    assert importers(LIBRARY, "typer", "rich", "click", "cli") == []


def test_arrow_is_used_only_in_table_and_engines():
    frames = ("rcdiag/results/frames.py", "rcdiag/results/show.py")  # polars, on demand
    outside = files_outside("rcdiag/table/", "rcdiag/engines/", *frames)
    assert importers(outside, "pyarrow", "polars") == []
    assert importers(files_outside("rcdiag/table/"), "pyarrow.parquet") == []
    assert importers(files_outside("rcdiag/table/", *frames), "polars") == []


def test_transformers_is_used_only_in_engines_and_learning():
    outside = files_outside(
        "rcdiag/engines/", "rcdiag/learning/", "rcdiag/table/readers/text_only.py"
    )
    assert importers(outside, "transformers", "vllm", "peft", "huggingface_hub") == []


def test_torch_is_used_only_in_engines_and_learning():
    outside = files_outside("rcdiag/engines/", "rcdiag/learning/")
    assert importers(outside, "torch") == []


def test_matplotlib_is_used_only_in_pages():
    assert importers(files_outside("rcdiag/pages/"), "matplotlib", "jinja2") == []


def test_pages_import_only_results():
    files = [path for path in LIBRARY if name_of(path).startswith("rcdiag/pages/")]
    heavy = ("torch", "polars", "pyarrow", "transformers", "vllm")
    makers = ("table", "engines", "learning", "corrections", "trainers", "usecases")
    assert importers(files, *heavy, *(f"rcdiag.{name}" for name in makers)) == []


def test_commands_import_no_engine_and_no_file_format():
    heavy = ("torch", "transformers", "vllm", "pyarrow", "polars", "matplotlib", "jinja2", "numpy")
    assert importers(CLI, *heavy) == []


# Modules that run in the process of an engine, maybe in the Python of another environment.
IN_ENGINES = ("worker", "hf.engine", "vllm.engine", "vllm.plugin", "vllm.prefill")
OF_ENGINES = {"numpy", "torch", "transformers", "vllm"}


def file_of(module: str) -> Path | None:
    """Return the file of a module of the library; None for other names."""
    path = ROOT / module.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def test_an_engines_process_needs_only_numpy_and_the_engine():
    """Every file that is imported there must also be valid Python 3.10."""
    waiting = [f"rcdiag.engines.{module}" for module in IN_ENGINES]
    seen: set[Path] = set()
    while waiting:
        module = waiting.pop()
        waiting += [module.rpartition(".")[0]] if "." in module else []
        path = file_of(module)
        if path is None or path in seen:
            continue
        seen.add(path)
        for node in ast.parse(path.read_text(), feature_version=(3, 10)).body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            waiting += [name for name in names if name.startswith("rcdiag.")]
            others = {name.partition(".")[0] for name in names} - {"rcdiag"}
            assert others <= {*sys.stdlib_module_names, *OF_ENGINES}, name_of(path)
    names = {name_of(path) for path in seen}
    assert {"rcdiag/engines/hf/model.py", "rcdiag/table/trajectories.py"} < names
    assert "rcdiag/engines/parts.py" not in names


def imports_at_top(path: Path, modules: set[str], *, with_types: bool = False) -> set[str]:
    """Return the `modules` that are imported at the top level, or for type checking only."""
    names: set[str] = set()
    body = ast.parse(path.read_text()).body
    if with_types:
        body += [inner for node in body if isinstance(node, ast.If) for inner in node.body]
    for node in body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= members & modules or {str(node.module)}
    return names & modules


def test_no_import_cycles_even_for_type_checking():
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (*LIBRARY, *CLI)
    }
    imports = {
        name: imports_at_top(path, set(files), with_types=True) for name, path in files.items()
    }
    visited: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in visited:
            for other in sorted(imports[name]):
                visit(other, (*trail, name))
            visited.add(name)

    for name in files:
        visit(name, ())
