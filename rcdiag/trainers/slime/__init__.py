"""slime at commit 624b824a8 has an MIS helper, and weights of its own by flags."""

from __future__ import annotations

from rcdiag.trainers.slime.flags import GENERATIONS

__all__ = ["GENERATIONS"]
