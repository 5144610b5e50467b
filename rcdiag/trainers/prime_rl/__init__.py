"""prime-rl at commit 559b4477 has two losses with a trust region, and logs what they drop."""

from __future__ import annotations

from rcdiag.trainers.prime_rl.trust_region import GENERATIONS

__all__ = ["GENERATIONS"]
