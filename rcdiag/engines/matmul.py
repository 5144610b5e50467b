"""Products of bfloat16 matrices on a CPU without bfloat16 instructions.

Such a CPU multiplies bfloat16 matrices five to twenty times slower than float32 ones. The native
product accumulates bfloat16 products in float32 and rounds once at the end. A float32 product of
the same values, then rounded, differs only by the order of the sums: 99.99% of the outputs have the
same bits (`tests/engines/test_matmul.py`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

ROUNDED = "float32, rounded"  # in a policy's metadata
# Parts of ONEDNN_MAX_CPU_ISA's values with which oneDNN still uses bfloat16 instructions.
_ISA_WITH_BFLOAT16 = ("BF16", "AMX", "AVX10", "DEFAULT", "ALL")


# CPU capabilities that multiply bfloat16 matrices, under torch's names, the fastest first.
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")


def bfloat16_instructions(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return this CPU's instructions for bfloat16 products, e.g. `avx512_bf16`, or None.

    Also None if the environment limits oneDNN, which computes the products, to an older set.
    """
    held_to = environment.get("ONEDNN_MAX_CPU_ISA") or environment.get("DNNL_MAX_CPU_ISA")
    if held_to and not any(name in held_to.upper() for name in _ISA_WITH_BFLOAT16):
        return None
    capabilities = torch.cpu.get_capabilities()
    return next((name for name in _INSTRUCTIONS if capabilities.get(name, False)), None)


def cpu_name() -> str:
    """Describe what the bits of a CPU's results depend on: `cpu x86_64, avx512_bf16, 8 threads`."""
    instructions = bfloat16_instructions() or "no bfloat16 instructions"
    return f"cpu {platform.machine()}, {instructions}, {torch.get_num_threads()} threads"


# Environment variables that choose kernels or the precision of products, those of vLLM as in its
# envs.py. None holds a path, a host or a key; a variable that is not listed is not recorded.
KERNEL_VARIABLES = (
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"),
    *("TRITON_F32_DEFAULT", "VLLM_FLOAT32_MATMUL_PRECISION", "VLLM_BATCH_INVARIANT"),
    *("VLLM_USE_V2_MODEL_RUNNER", "VLLM_USE_HW_AGNOSTIC", "VLLM_DISABLED_KERNELS"),
    # attention and recurrent layers
    *("VLLM_MLA_DISABLE", "VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT"),
    *("VLLM_GDN_DECODE_KERNEL", "VLLM_ENABLE_FLA_PACKED_RECURRENT_DECODE"),
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE",
    # matrix products, quantised ones too
    *("VLLM_USE_DEEP_GEMM", "VLLM_USE_DEEP_GEMM_E8M0", "VLLM_USE_DEEP_GEMM_TMA_ALIGNED_SCALES"),
    *("VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER", "VLLM_USE_TRITON_AWQ", "VLLM_HUMMING_USE_F16_ACCUM"),
    *("VLLM_MARLIN_INPUT_DTYPE", "VLLM_MARLIN_USE_ATOMIC_ADD", "VLLM_B12X_MOE_FP4_FORCE_A16"),
    *("VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD", "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD"),
    *("VLLM_USE_OINK_OPS", "VLLM_ENABLE_HPC_OPS", "VLLM_TRITON_USE_TD"),
    "VLLM_TRITON_FORCE_FIRST_CONFIG",
    # mixtures of experts
    *("VLLM_MOE_USE_DEEP_GEMM", "VLLM_USE_FLASHINFER_MOE_INT4", "VLLM_DEEPEPLL_NVFP4_DISPATCH"),
    *("VLLM_USE_FUSED_MOE_GROUPED_TOPK", "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"),
    "VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE",
    # sums over GPUs
    *("VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_USE_NCCL_SYMM_MEM"),
    *("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "VLLM_ENABLE_GEMM_RS"),
    # compilation
    *("VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE", "VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING"),
    # CPUs, then AMD's GPUs
    *("VLLM_CPU_ATTN_SPLIT_KV", "VLLM_CPU_INT4_W4A8", "VLLM_ZENTORCH_WEIGHT_PREPACK"),
    *("VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_LINEAR", "VLLM_ROCM_USE_AITER_MOE"),
    *("VLLM_ROCM_USE_AITER_MHA", "VLLM_ROCM_USE_AITER_MLA", "VLLM_ROCM_USE_AITER_RMSNORM"),
    *("VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", "VLLM_ROCM_USE_AITER_TRITON_GEMM"),
    *("VLLM_ROCM_USE_SKINNY_GEMM", "VLLM_ROCM_FP8_MFMA_PAGE_ATTN"),
    *("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16"),
)


def kernel_environment() -> dict[str, str]:
    """Return the environment variables by which vLLM, torch and CUDA choose matrix products."""
    return {name: os.environ[name] for name in sorted(KERNEL_VARIABLES) if name in os.environ}


def product_settings() -> dict[str, bool]:
    """Return whether torch multiplies in TF32 on CUDA, and whether it sums below float32."""
    matmul = torch.backends.cuda.matmul
    if not torch.cuda.is_available():
        return {"tf32": matmul.allow_tf32}
    return {
        "tf32": matmul.allow_tf32,
        "bfloat16_sums": matmul.allow_bf16_reduced_precision_reduction,
        "float16_sums": matmul.allow_fp16_reduced_precision_reduction,
    }


def rounds(choice: str | None, device: str, dtype: str) -> bool:
    """Tell whether a policy's matrix products are computed in float32 and rounded.

    `choice` is the policy's option `matmul`: "native", "rounded", or None, which decides by the
    CPU's instructions. Other devices and dtypes always multiply natively.
    """
    if device != "cpu" or dtype != "bfloat16":
        return False
    return bfloat16_instructions() is None if choice is None else choice == "rounded"


def _rounded(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a product of tensors: bfloat16 arguments, product in float32, result in bfloat16."""

    def made(*args: Any, **options: Any) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            wide = {name: _as_bfloat16(value) for name, value in options.items()}
            return product(*(_as_bfloat16(value) for value in args), **wide).bfloat16()

    return made


def _as_bfloat16(value: Any) -> Any:
    """Round a tensor to bfloat16 but keep it in float32; return anything else unchanged."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.bfloat16().float()
    return value


def rounded_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply x @ weight.T + bias in bfloat16; `weight` holds bfloat16 values in float32."""
    return linear(x.float(), weight, None if bias is None else bias.float()).to(x.dtype)


_PRODUCTS: dict[Any, Callable[..., Tensor]] = {
    product: _rounded(product)
    for product in (
        linear,
        torch.matmul,
        torch.bmm,
        torch.mm,
        torch.addmm,
        torch.baddbmm,
        Tensor.matmul,
        Tensor.__matmul__,
        Tensor.bmm,
        Tensor.mm,
        torch.nn.functional.scaled_dot_product_attention,
    )
}


class RoundedProducts(TorchFunctionMode):
    """A context in which bfloat16 products on the CPU are float32 products, then rounded."""

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        product = _PRODUCTS.get(function)
        if product is None:
            return function(*args, **kwargs)
        # Products are in bfloat16 by autocast, or by the dtype of their arguments.
        if torch.is_autocast_enabled("cpu"):
            low = torch.get_autocast_dtype("cpu") is torch.bfloat16
        else:
            tensors = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
            low = bool(tensors) and all(tensor.dtype is torch.bfloat16 for tensor in tensors)
        return product(*args, **kwargs) if low else function(*args, **kwargs)
