"""Without extras everything works that needs no model; errors name the missing extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

STALE = "sample_data/stale.parquet"
MODEL = ("--model", "sample_data/policy/step_8")
RUNS = {
    "score": ["score", STALE],
    "compare": ["compare", STALE],
    "diagnose": ["diagnose", STALE],
    "sweep": ["sweep", STALE, "--thresholds", "2"],
    "explain": ["explain", "vanilla"],
    "replay": ["replay", STALE],
    "replay --dry-run": ["replay", STALE, "--dry-run"],
}
LACKS = {
    "replay with a model": (["replay", STALE, *MODEL], "torch", "hf"),
    "diagnose with a model": (["diagnose", STALE, *MODEL], "torch", "hf"),
    "hf": (
        ["compare", STALE, *MODEL, "--policy", "x=hf:float32", "--policy", "old"],
        "torch",
        "hf",
    ),
    "ray": (["score", STALE, "--on", "ray"], "ray", "ray"),
    "text": (["score", STALE, *MODEL, "--include-text"], "tokenizers", "hf"),
}
HIDDEN = ("torch", "transformers", "tokenizers", "vllm", "peft", "ray")

CALLS = """
import contextlib, io, json, sys
from cli.main import main

ended = []
for arguments in json.loads(sys.stdin.read()):
    sys.argv = ["rcdiag", *arguments]
    code, err = 0, io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as exit:
            code = exit.code or 0
    ended.append((code, err.getvalue()))
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Run all commands without the packages of extras; returns exit codes and stderr."""
    folder = tmp_path_factory.mktemp("hidden")
    for name in HIDDEN:
        text = f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n"
        (folder / f"{name}.py").write_text(text)
    commands = [*RUNS.values(), *(command for command, _, _ in LACKS.values())]
    ran = subprocess.run(
        [sys.executable, "-c", CALLS],
        input=json.dumps(commands),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.getcwd()])},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip([*RUNS, *LACKS], json.loads(ran.stdout), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_commands_without_a_model_run(ended, name):
    code, err = ended[name]
    assert code == 0, err


@pytest.mark.parametrize("name", LACKS)
def test_a_missing_package_is_named_with_its_extra(ended, name):
    code, err = ended[name]
    _, package, extra = LACKS[name]
    assert code == 2
    assert f"{package} is not installed" in err
    assert f"pip install '.[{extra}]'" in err
    assert f"uv tool install --force '.[{extra}]'" in err
    assert "Traceback" not in err
