"""Who may import whom: the house of the design, read off the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = sorted((ROOT / "rcdiag").rglob("*.py"))
CLI = sorted((ROOT / "cli").rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, at its top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            found.add(str(node.module))
    return found


def is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def importers(files: list[Path], *packages: str) -> list[str]:
    return [
        name_of(path)
        for path in files
        if any(is_below(module, packages) for module in imports_of(path))
    ]


def files_below(*folders: str) -> list[Path]:
    return [path for path in LIBRARY if name_of(path).startswith(folders)]


def files_outside(*folders: str) -> list[Path]:
    return [path for path in LIBRARY if not name_of(path).startswith(folders)]


INNERMOST = files_below(
    "rcdiag/statistics/",
    "rcdiag/pair.py",
    "rcdiag/trajectories.py",
    "rcdiag/segments.py",
    "rcdiag/errors.py",
    "rcdiag/results/",
)


def test_there_is_something_to_look_at():
    assert len(LIBRARY) > 20
    assert len(INNERMOST) >= 10
    assert "rcdiag.errors.RcdiagError" in imports_of(ROOT / "rcdiag" / "results" / "__init__.py")


def test_the_library_knows_no_command_line():
    assert importers(LIBRARY, "typer", "rich", "click", "cli") == []


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_the_library_never_prints(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    names = [node.func.id for node in calls if isinstance(node.func, ast.Name)]
    assert "print" not in names


def test_statistics_know_neither_files_nor_engines():
    heavy = ("pyarrow", "polars", "torch", "transformers", "vllm", "matplotlib", "jinja2")
    ours = ("rcdiag.dumps", "rcdiag.backends", "rcdiag.scoring", "rcdiag.report", "rcdiag.score")
    assert importers(INNERMOST, *heavy, *ours) == []


def test_tables_are_handled_in_dumps_and_passed_on_by_scoring_only():
    assert importers(files_outside("rcdiag/dumps/", "rcdiag/scoring/"), "pyarrow", "polars") == []
    assert importers(files_outside("rcdiag/dumps/"), "pyarrow.parquet", "polars") == []


def test_engines_live_in_backends_and_training_only():
    outside = files_outside("rcdiag/backends/", "rcdiag/training/")
    assert importers(outside, "transformers", "vllm", "peft", "huggingface_hub") == []
    # Losses are differentiated: they are the one part of the domain that needs torch.
    outside = files_outside("rcdiag/backends/", "rcdiag/training/", "rcdiag/losses/")
    assert importers(outside, "torch") == []


def test_only_scoring_starts_engines():
    engines = ("rcdiag.backends.hf", "rcdiag.backends.vllm_engine", "rcdiag.backends.worker")
    assert importers(files_outside("rcdiag/backends/"), *engines) == []


def test_drawing_lives_in_report_only_and_needs_no_data_and_no_torch():
    assert importers(files_outside("rcdiag/report/"), "matplotlib", "jinja2") == []
    report = files_below("rcdiag/report/")
    heavy = ("torch", "polars", "pyarrow", "transformers", "vllm")
    assert importers(report, *heavy, "rcdiag.dumps", "rcdiag.backends", "rcdiag.scoring") == []


def test_dumps_know_no_statistics_and_no_report():
    ours = ("rcdiag.statistics", "rcdiag.report", "rcdiag.scoring", "rcdiag.score")
    assert importers(files_below("rcdiag/dumps/"), *ours) == []


def test_backends_know_no_statistics_no_scoring_and_no_report():
    ours = ("rcdiag.statistics", "rcdiag.report", "rcdiag.scoring", "rcdiag.score")
    assert importers(files_below("rcdiag/backends/"), *ours) == []


def test_commands_import_no_engine_and_no_file_format():
    heavy = ("torch", "transformers", "vllm", "pyarrow", "polars", "matplotlib", "jinja2", "numpy")
    assert importers(CLI, *heavy) == []


def test_commands_stay_short():
    assert [name_of(path) for path in CLI if len(path.read_text().splitlines()) > 200] == []


def imports_at_top(path: Path, modules: set[str]) -> set[str]:
    """Those of `modules` that are imported when the file is, type checking left out."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {str(node.module)}
    return found & modules


def test_the_library_has_no_import_cycles():
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in LIBRARY
    }
    imports = {name: imports_at_top(path, set(files)) for name, path in files.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in sorted(imports[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in files:
        visit(name, ())
