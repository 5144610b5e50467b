"""Fewer bootstrap replicates: what is tested here has other intervals, and many pairs."""

from functools import partial

import pytest

from rcdiag.statistics.totals import resampled


@pytest.fixture(autouse=True)
def _quick_bootstrap(monkeypatch):
    monkeypatch.setattr("rcdiag.statistics.suite.resampled", partial(resampled, replicates=50))
