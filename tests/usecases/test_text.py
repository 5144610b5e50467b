"""The tokenizer for text: that of a local model which the table names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rcdiag.usecases.reading import decoder_of
from tests.pages.makers import SAMPLES


@pytest.mark.parametrize("name", ["step_8", "step_{step}", "step_{policy_version}", "epoch_{step}"])
def test_the_tokenizer_of_a_model_with_a_folder_per_step_or_version(name):
    metadata = {"policies": {"rollout": {"model": str(SAMPLES / "policy" / name)}}}
    table = SimpleNamespace(metadata=metadata)
    decode = decoder_of(None, table, [], ["rollout", "old"], None)
    if name.startswith("epoch"):
        assert decode is None
    else:
        assert "".join(decode([457, 456])).strip()
