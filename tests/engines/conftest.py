"""A tiny model and its table; the command line in this process, without engine processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import rcdiag, run_once
from tests.engine_models import make_model, make_table, reference

__all__ = ["rcdiag", "run_once"]


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3")


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_table(tmp_path_factory.mktemp("tables") / "table.parquet")


@pytest.fixture(scope="session")
def expected(qwen3: Path, table: Path) -> dict[str, list]:
    return reference(qwen3, table)


@pytest.fixture(scope="session")
def adapter(qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter that clearly changes the attention and MLP of the tiny model.

    Its rank is above 16, vLLM's default maximum.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    config = LoraConfig(
        r=32,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj", "down_proj"],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(qwen3), config)
    folder = tmp_path_factory.mktemp("adapters") / "lora"
    model.save_pretrained(folder)
    return folder
