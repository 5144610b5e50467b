"""slime at commit 624b824a8 has an MIS helper, policy losses and a configuration."""

from __future__ import annotations

from rcdiag.trainers.slime.mis import GENERATIONS

__all__ = ["GENERATIONS"]
