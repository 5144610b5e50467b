"""PipelineRL at commit 58d39345: training on the ratio to the sampler, and its metrics."""

from __future__ import annotations

from rcdiag.trainers.pipelinerl.correction import facts, read
from rcdiag.trainers.pipelinerl.losses import UPDATE
from rcdiag.trainers.pipelinerl.metrics import metrics
from rcdiag.trainers.trainer import generation

GENERATIONS = (
    generation(
        "pipelinerl",
        package=__name__,
        presets={"default": {}, "bypass_ppo": {"policy_loss": "ppo"}},
        read=read,
        metrics=metrics,
        update=UPDATE,
        whole=lambda document: document.has("finetune.rl"),
        facts=facts,
    ),
)
