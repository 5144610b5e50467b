"""miles at commit 31f1ca96 has slime's MIS helper, and weights of its own by flags."""

from __future__ import annotations

from rcdiag.trainers.miles.flags import GENERATIONS

__all__ = ["GENERATIONS"]
