"""slime at commit 624b824a8: its MIS helper, its policy losses, its configuration."""

from __future__ import annotations

from rcdiag.trainers.slime.mis import GENERATIONS

__all__ = ["GENERATIONS"]
