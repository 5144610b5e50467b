"""A short GRPO run of the real trainer, recorded: python trl_run.py POLICY DUMP CASE."""

from __future__ import annotations

import sys
import warnings
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    # Generation and update share one step: TRL computes no old log-probs.
    "one step": {"gradient_accumulation_steps": 2},
    # One generation for two updates: TRL computes old log-probs before the first.
    "two updates": {"gradient_accumulation_steps": 1, "steps_per_generation": 2},
    # A reference model, and responses that were cut off taken out of the loss.
    "truncated": {"beta": 0.1, "mask_truncated_completions": True, "max_completion_length": 6},
}


def reward(completions: list[str], **others: Any) -> list[float]:
    return [float(len(text) % 3) for text in completions]


def main(policy: str, dump: str, case: str) -> None:
    warnings.simplefilter("ignore")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    import rcdiag
    from rcdiag.recorders.trl import recording

    settings = {"max_completion_length": 12, **CASES[case]}
    args = GRPOConfig(
        output_dir=f"{dump}-trl",
        per_device_train_batch_size=4,
        num_generations=4,
        max_steps=3,
        learning_rate=1e-3,
        temperature=0.7,
        seed=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **settings,
    )
    prompts = [f"{first} + {second} =" for first in range(2, 6) for second in range(3, 7)]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy, dtype="float32"),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(policy),
    )
    before = set(vars(trainer)), set(vars(trainer.model))
    with rcdiag.Recorder(dump) as recorder, recording(trainer, recorder):
        trainer.train()
    # rcdiag leaves no hook on the trainer or its model.
    watched = {"_compute_loss", "_calculate_rewards", "generate"}
    assert not watched & (set(vars(trainer)) | set(vars(trainer.model))), before


if __name__ == "__main__":
    main(*sys.argv[1:])
