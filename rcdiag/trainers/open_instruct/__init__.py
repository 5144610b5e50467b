"""open-instruct at commit e6c3044a corrects by one ratio, clamped and masked."""

from __future__ import annotations

from rcdiag.trainers.open_instruct.rho import GENERATIONS

__all__ = ["GENERATIONS"]
