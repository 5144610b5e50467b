"""Convert a tiny Llama checkpoint of transformers to Megatron-core: LLAMA FOLDER."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).parents[2]


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", ROOT / "examples/score_megatron.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights_of(llama: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Convert weights: Megatron fuses queries, keys and values by group, and gate and up."""
    theirs, config = llama.state_dict(), llama.config
    by_group = (config.num_key_value_heads, -1, config.head_dim, config.hidden_size)
    weights = {
        "embedding.word_embeddings.weight": theirs["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": theirs["model.norm.weight"],
        "output_layer.weight": theirs["lm_head.weight"],
    }
    for n in range(config.num_hidden_layers):
        layer, ours = f"model.layers.{n}.", f"decoder.layers.{n}."
        q, k, v = (theirs[f"{layer}self_attn.{name}_proj.weight"].view(by_group) for name in "qkv")
        gate, up = (theirs[f"{layer}mlp.{name}_proj.weight"] for name in ("gate", "up"))
        weights |= {
            f"{ours}input_layernorm.weight": theirs[f"{layer}input_layernorm.weight"],
            f"{ours}pre_mlp_layernorm.weight": theirs[f"{layer}post_attention_layernorm.weight"],
            f"{ours}self_attention.linear_qkv.weight": torch.cat([q, k, v], 1).flatten(0, 2),
            f"{ours}self_attention.linear_proj.weight": theirs[f"{layer}self_attn.o_proj.weight"],
            f"{ours}mlp.linear_fc1.weight": torch.cat([gate, up]),
            f"{ours}mlp.linear_fc2.weight": theirs[f"{layer}mlp.down_proj.weight"],
        }
    return weights


def main(source: str, folder: str) -> None:
    llama = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    config = llama.config
    arguments = {
        "dtype": "float32",
        "activation": "silu",
        "config": {
            "num_layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "ffn_hidden_size": config.intermediate_size,
            "num_attention_heads": config.num_attention_heads,
            "num_query_groups": config.num_key_value_heads,
            "kv_channels": config.head_dim,
            "normalization": "RMSNorm",
            "layernorm_epsilon": config.rms_norm_eps,
            "gated_linear_unit": True,
            "add_bias_linear": False,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "model": {
            "vocab_size": config.vocab_size,
            "max_sequence_length": config.max_position_embeddings,
            "position_embedding_type": "rope",
            "rotary_base": int(config.rope_parameters["rope_theta"]),
            "share_embeddings_and_output_weights": False,
        },
    }
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    model = example().build(arguments, 1)
    lacking, unknown = model.load_state_dict(weights_of(llama), strict=False)
    assert not unknown, unknown
    assert all("_extra_state" in name for name in lacking), lacking
    Path(folder).mkdir()
    dist_checkpointing.save(model.sharded_state_dict(), folder)
    (Path(folder) / "model.json").write_text(json.dumps(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
