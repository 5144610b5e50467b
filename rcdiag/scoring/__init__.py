"""Fill `{policy}_log_probs` columns: plan the parts, run each engine in its process, join."""

from rcdiag.scoring.run import ScoringPlan, plan_scoring, run_scoring

__all__ = ["ScoringPlan", "plan_scoring", "run_scoring"]
