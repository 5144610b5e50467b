"""Products of bfloat16 matrices on a CPU that has no instructions for them.

Such a CPU multiplies bfloat16 matrices five to twenty times slower than float32 ones. A float32
product of the same bfloat16 values, rounded to bfloat16 once at its end, is what the native
product computes as well, up to the order of its sums: 99.99% of the outputs have the same bits
(`tests/engines/test_matmul.py`).
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

ROUNDED = "float32, rounded"  # in a policy's metadata
# Parts of values of ONEDNN_MAX_CPU_ISA with which oneDNN still uses bfloat16 instructions.
_ISA_WITH_BFLOAT16 = ("BF16", "AMX", "AVX10", "DEFAULT", "ALL")


# CPU capabilities that multiply bfloat16 matrices, as torch names them, the fastest first.
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")


def bfloat16_instructions(environment: Mapping[str, str] = os.environ) -> str | None:
    """The instructions that multiply bfloat16 matrices on this CPU, e.g. `avx512_bf16`, or None.

    None also where the environment holds oneDNN, which multiplies, to an older set.
    """
    held_to = environment.get("ONEDNN_MAX_CPU_ISA") or environment.get("DNNL_MAX_CPU_ISA")
    if held_to and not any(name in held_to.upper() for name in _ISA_WITH_BFLOAT16):
        return None
    capabilities = torch.cpu.get_capabilities()
    return next((name for name in _INSTRUCTIONS if capabilities.get(name, False)), None)


def cpu_name() -> str:
    """What of a CPU decides the bits of a result: `cpu x86_64, avx512_bf16, 8 threads`."""
    instructions = bfloat16_instructions() or "no bfloat16 instructions"
    return f"cpu {platform.machine()}, {instructions}, {torch.get_num_threads()} threads"


# Prefixes of variables that choose kernels or their precision; paths and secrets are left out.
_DECIDES = re.compile(r"VLLM_|NVIDIA_TF32|TORCH_ALLOW_TF32|TRITON_F32|CUBLAS_WORKSPACE")
_PRIVATE = re.compile(r"KEY|HOST|PORT|PATH|ROOT|DIR|URL|LOG")


def kernel_environment() -> dict[str, str]:
    """The environment variables of this process that decide how vLLM, torch and CUDA multiply."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if _DECIDES.match(name) and not _PRIVATE.search(name)
    }


def product_settings() -> dict[str, bool]:
    """How torch multiplies on CUDA: in TF32, and with sums in less than float32."""
    matmul = torch.backends.cuda.matmul
    if not torch.cuda.is_available():
        return {"tf32": matmul.allow_tf32}
    return {
        "tf32": matmul.allow_tf32,
        "bfloat16_sums": matmul.allow_bf16_reduced_precision_reduction,
        "float16_sums": matmul.allow_fp16_reduced_precision_reduction,
    }


def rounds(choice: str | None, device: str, dtype: str) -> bool:
    """Whether a policy's matrix products are made in float32 and rounded.

    `choice` is the policy's option `matmul`: "native", "rounded", or None, which leaves it to the
    CPU. Other devices and dtypes always multiply natively.
    """
    if device != "cpu" or dtype != "bfloat16":
        return False
    return bfloat16_instructions() is None if choice is None else choice == "rounded"


def _rounded(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A product of tensors, made in float32 of bfloat16 arguments and rounded to bfloat16."""

    def made(*args: Any, **options: Any) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            wide = {name: _as_bfloat16(value) for name, value in options.items()}
            return product(*(_as_bfloat16(value) for value in args), **wide).bfloat16()

    return made


def _as_bfloat16(value: Any) -> Any:
    """A tensor's values as bfloat16 has them, held in float32; anything else as it is."""
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
    """Inside this context bfloat16 products on the CPU are float32 products, rounded."""

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        product = _PRODUCTS.get(function)
        if product is None or not _is_bfloat16(args):
            return function(*args, **kwargs)
        return product(*args, **kwargs)


def _is_bfloat16(args: tuple[Any, ...]) -> bool:
    """Whether a product of these arguments is one of bfloat16, by their dtype or by autocast."""
    tensors = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") is torch.bfloat16
    return bool(tensors) and all(tensor.dtype is torch.bfloat16 for tensor in tensors)
