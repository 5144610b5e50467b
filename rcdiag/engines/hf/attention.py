"""Attention for float32 on CUDA, where sdpa with grouped keys allocates whole score matrices.

transformers passes `enable_gqa` to torch's sdpa if there are fewer key heads than query heads. In
float32 flash attention and cuDNN are not available, the memory-efficient kernel does not support
grouped keys (pytorch #154363, #181528), and torch silently uses its math kernel: 70 GiB for a row
of 16 k tokens of a model with 28 heads. With repeated keys and values the memory-efficient kernel
runs.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

REPEATED = "sdpa_repeated_kv"


def attention_of(choice: str | None, dtype: torch.dtype, device: torch.device) -> str:
    """Return a policy's attention: the one that it names, or the default for device and dtype.

    `dtype` is that of the products in attention, which autocast lowers.
    """
    grouped_keys_cost_memory = device.type == "cuda" and dtype == torch.float32
    return choice or (REPEATED if grouped_keys_cost_memory else "sdpa")


def repeated_kv(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attend as transformers' sdpa does, with each key and value repeated for its queries.

    query [rows, heads, length, width], key and value [rows, groups, length, width] ->
    [rows, length, heads, width].
    """
    repeats = getattr(module, "num_key_value_groups", 1)
    # transformers' function reads two attributes of the module; without `num_key_value_groups` it
    # does not pass `enable_gqa`.
    ungrouped = SimpleNamespace(is_causal=getattr(module, "is_causal", True))
    key, value = repeat_kv(key, repeats), repeat_kv(value, repeats)
    attended: Tensor
    attended, _ = sdpa_attention_forward(ungrouped, query, key, value, mask, **options)
    return attended, None


AttentionInterface.register(REPEATED, repeated_kv)
AttentionMaskInterface.register(REPEATED, sdpa_mask)
