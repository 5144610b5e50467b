"""The reward of the sample data's GRPO run, as a function for `rcdiag replay --reward`.

`rcdiag replay ... --reward sample_data/reward.py:exact --evaluate 256`
"""

from __future__ import annotations

from typing import Any

from problems import EOS, grade


def exact(prompt: str, response: str, row: dict[str, Any]) -> float:
    """Return 1 if the response has ended and its last line is the expected answer, else 0."""
    if not response.endswith(EOS):
        return 0.0
    return float(grade(response.removesuffix(EOS), int(row["expected_answer"])))
