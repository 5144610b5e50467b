"""Settings of the whole suite, and which files start first; builders are in `tests.builders`."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.examples import WEEKLY

# The same examples every time, so that no test fails by chance.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=15, database=None)
settings.register_profile(WEEKLY, settings.get_profile("quick"), max_examples=50)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# The slowest files start first, so that all workers end at about the same time.
LONGEST = (
    "engines/test_served_vllm.py",
    "engines/test_vllm.py",
    "test_sample_data.py",
    "pages/test_every_page.py",
    "statistics/test_coverage.py",
    "docs/test_commands.py",
    "engines/test_resume.py",
    "diagnosis/test_judge.py",
    "faults/test_faults.py",
    "pages/test_plot.py",
    "usecases/test_one_diagnosis.py",
    "usecases/test_diagnose.py",
    "runners/test_workers.py",
    "pages/test_interactions.py",
    "pages/test_transcript.py",
    "pages/test_sliders.py",
    "table/test_recorder.py",
)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Make torch use one thread during a test."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def memory() -> Iterator[Any]:
    """The files behind `memory://`, all gone after the test."""
    import fsspec

    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


def pytest_configure() -> None:
    """Collect without the garbage collector: nearly all objects made then stay alive."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude objects made by collection from later garbage collections."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        path = item.path.as_posix()
        result = [place for place, name in enumerate(LONGEST) if path.endswith(f"/tests/{name}")]
        return result[0] if result else len(LONGEST)

    items.sort(key=rank)
