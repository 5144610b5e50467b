from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rcdiag.learning.trainee import Trainee
from rcdiag.table.trajectories import Trajectories
from tests import engine_models as engines
from tests.engine_models import make_model, make_table
from tests.learning.helpers import MORE_CONFIGS, ROWS, parts_of, trainee


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that makes a model of an architecture or a configuration."""

    def make(kind: str, config: object = None) -> Path:
        known = {**engines.CONFIGS, **MORE_CONFIGS}
        build = known[kind] if config is None else lambda: config
        monkeypatch.setitem(engines.CONFIGS, kind, build)
        return engines.make_model(tmp_path / kind, kind)

    return make


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_table(tmp_path_factory.mktemp("tables") / "table.parquet", rows=ROWS)


@pytest.fixture(scope="session")
def parts(table: Path) -> list[Trajectories]:
    return parts_of(table)


@pytest.fixture(scope="session")
def shared(qwen3: Path) -> Trainee:
    """A shared model for tests that take no optimizer step."""
    return trainee(qwen3)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: layers this small are faster without a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
