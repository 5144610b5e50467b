"""Engines in another environment, which has only the engine and numpy."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import rcdiag
from rcdiag.engines import BACKENDS
from rcdiag.engines.arrays import (
    rows_from_bytes,
    rows_to_bytes,
    scores_from_bytes,
    scores_to_bytes,
)
from rcdiag.engines.backend import Backend
from rcdiag.engines.interpreter import check_python
from rcdiag.engines.notation import parse_policy
from rcdiag.engines.process import engine_address
from rcdiag.engines.schedule import ATTEMPTS
from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Ragged, Scores
from tests.builders import make_trajectories, write_table
from tests.engines.toy_engine import TOY, make_checkpoint

ENGINE = """
import importlib.metadata
import os
import signal
import sys
from pathlib import Path

import numpy as np

from rcdiag.table.trajectories import Scores


class Tiny:
    def __init__(self, spec, max_length, log):
        self.spec, self.max_length = spec, max_length

    def score(self, rows, progress):
        deaths = Path(self.spec.model) / "deaths"  # still to die on a part without the first row
        if deaths.exists() and rows.row[0] > 0 and (left := int(deaths.read_text())):
            deaths.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        ids = rows.response_ids
        progress(len(ids.values))
        temperature = np.repeat(rows.scoring_temperature, ids.lengths)
        return Scores(log_probs=-(ids.values / temperature).astype(np.float32))

    def provenance(self):
        foreign = {name.partition(".")[0] for name in sys.modules} - {*sys.stdlib_module_names}
        plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
        return {
            "foreign": sorted(name for name in foreign if not name.startswith("_")),
            "path": sys.path,
            "plugins": [plugin.value for plugin in plugins],
            "max_length": self.max_length,
            "process": os.getpid(),
        }
"""
EVIL = "import pathlib; pathlib.Path({mark!r}).touch()\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A virtual environment with this numpy, an engine, and no other package."""
    folder = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for path in Path(np.__file__).parents[1].glob("numpy*"):
        (site / path.name).symlink_to(path)
    (site / "tiny_engine.py").write_text(ENGINE)
    return folder


@pytest.fixture
def tiny(environment, monkeypatch) -> Iterator[Backend]:
    (site,) = environment.glob("lib/python*/site-packages")
    monkeypatch.syspath_prepend(site)
    module: ModuleType = importlib.import_module("tiny_engine")
    backend = replace(TOY, name="tiny", load=module.Tiny, packages={"numpy": "1.26"})
    with BACKENDS.with_added(backend):
        yield backend


def test_an_engine_runs_in_an_environment_with_numpy_only(tiny, environment, tmp_path, monkeypatch):
    """Neither this environment nor the current folder is on its import path."""
    mark, here = tmp_path / "mark", tmp_path / "downloaded"
    here.mkdir()
    for name in ("rcdiag", "json", "numpy", "tiny_engine", "sitecustomize"):
        (here / f"{name}.py").write_text(EVIL.format(mark=str(mark)))
    monkeypatch.chdir(here)
    ids = [[3, 1], [5], [7, 2, 4]]
    table = write_table(
        "table.parquet",
        prompt_ids=[[1]] * 3,
        response_ids=ids,
        temperature=[1.0, 0.5, 2.0],
        rollout_log_probs=[[-1.0] * len(row) for row in ids],
    )
    make_checkpoint(Path("model"))
    python = os.path.relpath(environment / "bin" / "python")
    policies = {"old": f"tiny:float32,python={python}"}
    rcdiag.score(table, model="model", policies=policies, output="out.parquet")
    scored = pq.read_table("out.parquet")
    expected = [[-3.0, -1.0], [-10.0], [-3.5, -1.0, -2.0]]
    assert scored["old_log_probs"].to_pylist() == expected
    about = rcdiag.open_table("out.parquet").metadata["policies"]["old"]
    assert about["foreign"] == ["numpy", "rcdiag", "tiny_engine"]
    assert about["plugins"] == ["rcdiag.engines.vllm.plugin:register"]
    assert about["versions"]["numpy"] == np.__version__
    assert about["options"] == {"python": python}
    assert about["model"] == "model"
    assert not {sysconfig.get_path("purelib"), str(here), ""} & {*about["path"]}
    assert not mark.exists()


@pytest.mark.parametrize("deaths", [1, ATTEMPTS])
def test_an_engine_elsewhere_that_is_killed_costs_no_finished_part(
    deaths, tiny, environment, tmp_path, monkeypatch
):
    """Another is started; where each of them dies the run ends, and the same call resumes."""
    monkeypatch.setattr("rcdiag.engines.scoring.TOKENS_PER_PART", 1)
    ids = [[3, 1], [5, 8], [7, 2], [4, 6]]
    table = write_table(
        tmp_path / "table.parquet",
        prompt_ids=[[1]] * 4,
        response_ids=ids,
        rollout_log_probs=[[-1.0] * 2] * 4,
    )
    model = make_checkpoint(tmp_path / "model")
    (model / "deaths").write_text(str(deaths))
    policies = {"old": f"tiny:float32,python={environment / 'bin' / 'python'}"}

    def score() -> None:
        rcdiag.score(table, model=model, policies=policies, output=tmp_path / "out.parquet")

    if deaths == ATTEMPTS:
        with pytest.raises(RcdiagError, match="killed by signal 9"):
            score()
        assert not (tmp_path / "out.parquet").exists()
    score()
    assert (model / "deaths").read_text() == "0"
    scored = pq.read_table(tmp_path / "out.parquet")["old_log_probs"].to_pylist()
    assert scored == [[-float(token) for token in row] for row in ids]
    about = rcdiag.open_table(tmp_path / "out.parquet").metadata["policies"]["old"]
    assert "process" in about["differs"]
    assert [engine["parts"] for engine in about["engines"]] == [1, 3]


def refusal(python: Path | str, packages: dict[str, str]) -> RcdiagError:
    backend = replace(TOY, packages=packages)
    with BACKENDS.with_added(backend), pytest.raises(RcdiagError) as caught:
        check_python(parse_policy(f"x=toy,python={python}", "m"), backend)
    return caught.value


def says(folder: Path, text: str) -> Path:
    """Write a program that prints a text."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("answer", "message", "hint"),
    [
        ("hello", "does not run as a Python", "the interpreter of the environment"),
        ('{"python": "3.9.18"}', "Python 3.9.18", "Python 3.10 or later"),
        (
            '{"python": "3.10.1", "numpy": "1.25.0", "fast": "2.13.0+cpu"}',
            "numpy 1.25.0, no slow in that environment",
            "-m pip install 'numpy>=1.26' 'slow>=0.20'",
        ),
    ],
)
def test_an_environment_that_lacks_something_is_refused_by_name(tmp_path, answer, message, hint):
    error = refusal(says(tmp_path, answer), {"fast": "2.8", "slow": "0.20"})
    assert message in error.message
    assert hint in error.hint


def test_a_missing_file_and_a_folder_are_refused_naming_the_python_inside(tmp_path):
    assert "No such file" in refusal(tmp_path / "nowhere", {"numpy": "1.26"}).message
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    error = refusal(tmp_path, {"numpy": "1.26"})
    assert "a folder" in error.message
    assert f"python={tmp_path}/bin/python" in error.hint


def test_an_engine_without_a_list_of_packages_has_no_such_option():
    with BACKENDS.with_added(TOY), pytest.raises(RcdiagError, match="unknown option `python`"):
        parse_policy("x=toy,python=/venv/bin/python", "m")


@pytest.mark.parametrize("backend", ["hf", "vllm"])
def test_the_engines_that_ship_run_elsewhere(backend):
    spec = parse_policy(f"x={backend},python=/venv/bin/python", "m")
    assert spec.options == {"python": "/venv/bin/python"}
    assert BACKENDS[backend].passed_on(spec.options) == {}


def test_required_packages_of_an_environment_match_those_of_rcdiag():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for backend in ("hf", "vllm"):
        for name, least in BACKENDS[backend].packages.items():
            assert f'"{name}>={least}"' in text


def test_an_engine_that_another_process_cannot_import_is_refused():
    def local(*_: Any) -> Any:
        raise AssertionError("nothing is loaded here")

    with pytest.raises(RcdiagError, match=r"backend `toy` is loaded by .*local") as caught:
        engine_address(replace(TOY, load=local))
    assert "top of a module" in caught.value.hint
    assert engine_address(TOY) == "tests.engines.toy_engine:ToyEngine"


def test_rows_and_scores_survive_serialisation():
    lists = Ragged(np.array([4, 5, 6], np.int32), np.array([0, 2, 2, 3]))
    rows = make_trajectories([[-1.0, -1.0], [-1.0]], [[-1.0, -1.0], [-1.0]], mask=[[1, 0], [1]])
    rows = replace(
        rows,
        first_row=7,
        rows=np.array([7, 9]),
        temperature=np.array([0.5, np.nan]),
        prompt_ids=Ragged(np.array([1, 2], np.int32), np.array([0, 2, 2])),
        token_lists={"rollout_kept_ids": lists},
    )
    read = rows_from_bytes(rows_to_bytes(rows))
    assert read.first_row == 7
    for name in ("mask", "temperature", "rows", "row", "scoring_temperature"):
        np.testing.assert_array_equal(getattr(read, name), getattr(rows, name))
    assert read.prompt_ids is not None
    for one, other in [
        (read.prompt_ids, rows.prompt_ids),
        (read.response_ids, rows.response_ids),
        (read.token_lists["rollout_kept_ids"], lists),
    ]:
        assert one.values.dtype == other.values.dtype
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.offsets, other.offsets)
    bare = rows_from_bytes(rows_to_bytes(make_trajectories([[-1.0]], [[-1.0]])))
    assert (bare.prompt_ids, bare.temperature, bare.rows, bare.token_lists) == (None,) * 3 + ({},)

    scores = Scores(np.array([-1.0, -2.0], np.float32), top_ids=np.zeros((2, 3), np.int32))
    back = scores_from_bytes(scores_to_bytes(scores))
    np.testing.assert_array_equal(back.log_probs, scores.log_probs)
    assert back.top_ids is not None
    assert back.top_ids.shape == (2, 3)
    assert back.entropy is None


def test_objects_do_not_come_back_from_an_engine():
    """They would need pickle, which can run arbitrary code."""
    objects: Any = np.array([print], dtype=object)
    with pytest.raises(ValueError, match="allow_pickle"):
        scores_from_bytes(scores_to_bytes(Scores(log_probs=objects)))
