"""bfloat16 products computed in float32 and rounded, against the CPU's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rcdiag.engines.hf.engine import HfEngine  # noqa: E402
from rcdiag.engines.matmul import (  # noqa: E402
    ROUNDED,
    RoundedProducts,
    bfloat16_instructions,
    rounded_linear,
    rounds,
)
from rcdiag.engines.notation import parse_policy  # noqa: E402
from tests.engines.test_hf import rows_of, score  # noqa: E402


def ulps_apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many bfloat16 numbers lie between two of one sign; where signs differ, those to 0."""
    bits = [t.view(torch.int16).int() for t in (a, b)]
    ordered = [torch.where(n < 0, -(n & 0x7FFF), n) for n in bits]
    return (ordered[0] - ordered[1]).abs()


def test_a_rounded_product_nearly_always_equals_the_native_one_bitwise() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(512, 384).bfloat16(), torch.randn(512, 384).bfloat16()
    native = torch.nn.functional.linear(x, weight)
    rounded = rounded_linear(x, weight.float())
    apart = ulps_apart(native, rounded)
    assert rounded.dtype == torch.bfloat16
    # Two orders of summation differ in the last bits of float32; a product is rounded to another
    # bfloat16 only where it lies so near the middle of two, and where terms cancel.
    assert float((apart > 0).float().mean()) < 1e-3
    assert float((native.float() - rounded.float()).abs().max()) <= 2**-8 * float(
        native.abs().max()
    )


@pytest.mark.parametrize("autocast", [False, True])
def test_the_context_rounds_every_kind_of_product(autocast: bool) -> None:
    torch.manual_seed(1)
    dtype = torch.float32 if autocast else torch.bfloat16
    a, b = torch.randn(4, 32, 48, dtype=dtype), torch.randn(4, 48, 16, dtype=dtype)
    exact = a.bfloat16().double() @ b.bfloat16().double()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), RoundedProducts():
        products = (a @ b, a.matmul(b), torch.matmul(a, b), torch.bmm(a, b))
        one = torch.mm(a[0], b[0]), torch.addmm(torch.zeros(16, dtype=dtype), a[0], b[0])
    for product in products:
        assert product.dtype == torch.bfloat16
        torch.testing.assert_close(product.double(), exact, rtol=2**-8, atol=1e-5)
    for product in one:
        torch.testing.assert_close(product.double(), exact[0], rtol=2**-8, atol=1e-5)


def test_float32_products_are_left_alone_in_the_context() -> None:
    torch.manual_seed(2)
    a, b = torch.randn(32, 48), torch.randn(48, 16)
    with RoundedProducts():
        product = a @ b
    assert torch.equal(product, a @ b)
    assert product.dtype == torch.float32


def test_a_boolean_attention_mask_stays_boolean() -> None:
    torch.manual_seed(3)
    q = torch.randn(1, 2, 8, 16).bfloat16()
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    attend = torch.nn.functional.scaled_dot_product_attention
    with RoundedProducts():
        rounded = attend(q, q, q, attn_mask=mask)
    exact = attend(q.double(), q.double(), q.double(), is_causal=True)
    torch.testing.assert_close(rounded.double(), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("held_to", ["AVX2", "AVX512_CORE", "avx2_vnni", "AVX512_CORE_VNNI"])
def test_a_library_restricted_to_older_instructions_has_no_bfloat16(held_to: str) -> None:
    assert bfloat16_instructions({"ONEDNN_MAX_CPU_ISA": held_to}) is None


def test_only_bfloat16_on_a_cpu_is_ever_rounded() -> None:
    assert rounds("rounded", "cpu", "bfloat16")
    assert not rounds("native", "cpu", "bfloat16")
    assert not rounds("rounded", "cuda", "bfloat16")
    assert not rounds("rounded", "cpu", "float16")
    assert rounds(None, "cpu", "bfloat16") is (bfloat16_instructions() is None)


@pytest.mark.engine
@pytest.mark.parametrize("options", ["bfloat16", "float32,autocast=bfloat16"])
def test_rounded_and_native_models_are_equally_far_from_float32(
    options: str, qwen3: Path, table: Path
) -> None:
    """The native and the rounded product act like two engines of one precision.

    Their roundings are as large, so each is about as far from float32 as the other; were they
    independent the two would be 1.41 times as far from each other.
    """
    rows = rows_of(table)
    full = score("p=hf:float32", qwen3, rows).log_probs
    native = score(f"p=hf:{options},matmul=native", qwen3, rows).log_probs
    rounded = score(f"p=hf:{options},matmul=rounded", qwen3, rows).log_probs

    def rms(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.sqrt(np.mean((a - b) ** 2)))

    assert 0.5 < rms(rounded, full) / rms(native, full) < 2
    assert rms(rounded, native) < 1.5 * rms(native, full)


@pytest.mark.engine
def test_the_metadata_says_how_matrices_were_multiplied(qwen3: Path) -> None:
    for choice, words in (("rounded", ROUNDED), ("native", None)):
        spec = parse_policy(f"p=hf:bfloat16,matmul={choice}", str(qwen3))
        assert HfEngine(spec).provenance().get("matmul") == words
