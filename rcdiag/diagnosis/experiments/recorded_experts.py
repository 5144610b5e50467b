"""Routes the model by the sampler's recorded experts: how much of a mismatch is routing."""

from __future__ import annotations

from collections.abc import Iterator

from rcdiag.diagnosis.causes.cause import Suspicion, fact
from rcdiag.diagnosis.experiments.hypothesis_tester import (
    HypothesisTest,
    HypothesisTester,
    experiment,
)
from rcdiag.diagnosis.experiments.rescored_sample import RescoredSample, Side
from rcdiag.diagnosis.experiments.sides import fit_of_residual
from rcdiag.diagnosis.experiments.unlogged_sampling import make_suspicion
from rcdiag.diagnosis.thresholds import HALF, SURELY
from rcdiag.engines.changes import RecordedExperts
from rcdiag.formats import percentage


@experiment(
    slugs=("moe-routing",),
    passes=lambda tester: 4.0,
    worth=lambda tester: 0.0,  # it runs separately, before the others, if experts are recorded
    sides=("sampler",),
)
def recorded_experts(tester: HypothesisTester) -> Iterator[HypothesisTest]:
    """Try the model with the sampler's experts on all rows of the sample."""
    test = tester.test_pass(
        "moe-routing",
        "the recorded experts",
        change=RecordedExperts(),
        rows=tester.sample.rows,
    )
    if test is not None:
        yield test


def cause_in_experts(sample: RescoredSample, side: Side, test: HypothesisTest) -> Suspicion | None:
    """Return `moe-routing` where the sampler's experts explain most of its column's distance."""
    if test.explained < HALF or test.z < SURELY:
        return None
    fit = fit_of_residual(
        sample, test.residual, test.at, "hypothesis", explained=test.explained, z=test.z
    )
    message = (
        f"With the experts that the sampler recorded, {percentage(test.explained)} of the squared "
        f"distance between {side.policy}_log_probs and the checkpoint's log-probs disappears (rms "
        f"{test.baseline.rms:.2g} to {test.residual.rms:.2g} nats): it is caused by other experts."
    )
    evidence = fact(
        "rms of recorded - the checkpoint's log-prob",
        "most of it is caused by the experts",
        **{"own experts": test.baseline.rms, "recorded experts": test.residual.rms},
    )
    return make_suspicion("moe-routing", fit, message, [evidence], side="none")
