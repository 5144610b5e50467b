"""Check that every number is unchanged, by comparing commands' results with a stored reference.

Runs a fixed set of commands of the public command line (`tools/net/commands.py`) on the sample
tables and on a hundred generated ones (`tools/net/tables.py`), and compares every leaf of their
result documents with those stored in `tools/same_results.xz`:

    python tools/same_results.py                 # all
    python tools/same_results.py --quick         # a small part of the commands
    python tools/same_results.py --only 'sweep'  # the commands whose name matches

A number must be equal to the last bit, or within a relative 1e-12 if the order of a sum has
changed. The number of such values is printed, and with `--exact` they are failures. Differences of
sums near zero have fewer exact digits: 1e-14 is always allowed, and a few named numbers are given
more (LOOSE). Texts must be equal; of messages only the presence is compared. New leaves are
reported, but are not failures.

Intended changes are listed in CHANGED, with the reason, until `--store --force` writes the
reference again. Renamed fields are compared under their old name, which is listed in
`rcdiag/results/older.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import math
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "tools" / "same_results.xz"
CODE = ("rcdiag", "cli", "sample_data")

# One thread, so that sums have one order. Set before anything loads torch or numpy.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

from net.commands import Command, all_commands, write_configs  # noqa: E402
from net.documents import TRACEBACK, Leaf, Leaves, run  # noqa: E402
from net.store import load, save  # noqa: E402
from net.tables import write_tables  # noqa: E402

GONE = "gone"
NEW_VALUE = "new value"


@dataclass(frozen=True, kw_only=True)
class Change:
    r"""An intended difference from the reference.

    `old` is a regular expression for a whole path. `new` is GONE, NEW_VALUE (exists, but is no
    longer compared), or the new path, with groups as \\1; `convert` makes the new value from the
    old one. `only` is a regular expression searched in the names of the commands concerned.
    """

    old: str
    new: str
    reason: str
    only: str = ""
    convert: Callable[[Leaf], Leaf] | None = None
    or_now: Leaf = None  # a value that is allowed in place of the stored one
    may_go: bool = False  # the leaf may be missing; it is compared if it exists


CHANGED: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed distance of two numbers: a share of the larger one, or an absolute floor."""

    relative: float
    floor: float


EXACT = Tolerance(0.0, 0.0)
# The last digit of a log-prob, 1 to 40 in size, is 1e-16 to 7e-15. With the numpy and torch code
# for another processor (no AVX-512), 104,000 of the 8 million values change in their last digits;
# all except those of LOOSE stay within this tolerance.
SUM_ORDER = Tolerance(1e-12, 1e-14)
# Path pattern, tolerance, reason: numbers that needed more in that comparison of processors.
LOOSE: tuple[tuple[str, Tolerance, str], ...] = (
    (
        r".*/rollout_[ir]s_std",
        Tolerance(1e-12, 1e-12),
        "the root of E[w^2] - E[w]^2, as in verl: it has no exact digits if all weights are near 1",
    ),
    (
        r"(.*/)?khat(_[a-z]+)?(/(value|low|high))?",
        Tolerance(1e-10, 1e-11),
        "a Pareto fit to excesses over a ratio that is 1 to within 1e-4",
    ),
    (
        r"(.*/)?(chi2|ess)_[a-z_]+/(low|high)",
        Tolerance(1e-8, 1e-14),
        "E[ratio^2] without each group in turn: differences have few digits if ratios are near 1",
    ),
    (
        r".*/(low|high)",
        Tolerance(1e-10, 1e-14),
        "squares of differences between sums without one group, which are nearly equal",
    ),
)
# exp and log of float32 are rounded as in torch, no longer as in numpy: two last digits, 2.4e-7, of
# a ratio, which is a larger share of a mean of ratios less 1.
ROUNDED_AS_TORCH = Tolerance(1e-6, 3e-7)
# Models run in float32, and matrix products add in another order on another processor: 1e-7 in a
# log-prob. Gradients are made from log-probs, and cosines and variances from their differences.
OTHER_MACHINE = Tolerance(1e-3, 2e-5)
# On the machine of the store: presets that differ only by a factor per sequence share a backward
# pass, and their products are now computed after that factor instead of before it.
OTHER_PRODUCTS = Tolerance(1e-5, 1e-6)
HALF = Tolerance(0.1, 0.01)  # for bfloat16, whose last digit is 0.4%
# E[ratio^2] - 1 of sequences: the sum of a hundred such last digits is off by a tenth of a nat. The
# value is hardly more than the square of this error, and depends on the largest error by chance.
HALF_OF_SEQUENCES = Tolerance(0.1, 0.05)
# A token at the edge of a bin may be counted on its other side.
COUNTS = Tolerance(1.0, 0.0)


def tolerance(command: Command, path: str, *, exact: bool, elsewhere: bool) -> Tolerance:
    """Return the tolerance for the numbers of a command at a path."""
    if command.model and elsewhere:
        half = any("bfloat16" in word for word in command.arguments)
        if half and path.endswith("chi2_seq"):
            return HALF_OF_SEQUENCES
        return COUNTS if path.endswith("counts[]") else HALF if half else OTHER_MACHINE
    if command.model and command.name.startswith("replay"):
        return COUNTS if path.endswith("counts[]") else OTHER_PRODUCTS
    if "corrections/" in path and "--arithmetic" in command.arguments:
        return ROUNDED_AS_TORCH
    if exact:
        return EXACT
    return next((given for pattern, given, _ in LOOSE if re.fullmatch(pattern, path)), SUM_ORDER)


@dataclass(slots=True)
class Comparison:
    """The outcome of comparing a command's leaves."""

    same: int = 0
    reordered: int = 0
    largest: float = 0.0  # largest distance of the reordered values
    purposeful: int = 0
    added: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # path and what differs
    used: set[Change] = field(default_factory=set)


def compare(
    name: str, old: Leaves, new: Leaves, tolerance_of: Callable[[str], Tolerance]
) -> Comparison:
    """Compare the leaves of a command with the stored ones."""
    comparison = Comparison()
    looked_at = set()
    changes = [change for change in CHANGED if re.search(change.only, name)]
    for before, values in old.items():
        change = next((change for change in changes if re.fullmatch(change.old, before)), None)
        path = before
        if change is not None:
            comparison.used.add(change)
            comparison.purposeful += 1
            if change.new == GONE:
                if before in new:
                    comparison.failures.append(f"{before}: listed as gone, but still there")
                    looked_at.add(before)
                continue
            if change.new != NEW_VALUE:
                path = re.sub(change.old, change.new, before)
            if change.convert is not None:
                values = [change.convert(value) for value in values]
        looked_at.add(path)
        if path not in new and change is not None and change.may_go:
            continue
        if path not in new:
            renamed = "" if path == before else f" (was {before})"
            comparison.failures.append(f"{path}{renamed}: missing")
        elif change is None or change.new != NEW_VALUE:
            after = new[path]
            if change is not None and change.or_now is not None and len(values) == len(after):
                pairs = zip(values, after, strict=True)
                values = [now if now == change.or_now else old for old, now in pairs]
            _compare_values(comparison, path, values, after, tolerance_of)
    comparison.added = [path for path in new if path not in looked_at]
    return comparison


def _compare_values(
    comparison: Comparison,
    path: str,
    old: list[Leaf],
    new: list[Leaf],
    tolerance_of: Callable[[str], Tolerance],
) -> None:
    if old == new and [type(leaf) for leaf in old] == [type(leaf) for leaf in new]:
        comparison.same += len(old)
        return
    if len(old) != len(new):
        comparison.failures.append(f"{path}: {len(old)} values, now {len(new)}")
        return
    allowed = tolerance_of(path)
    for at, (before, after) in enumerate(zip(old, new, strict=True)):
        apart, size = _apart(before, after)
        if apart == 0.0:
            comparison.same += 1
        elif apart <= max(allowed.floor, allowed.relative * size):
            comparison.reordered += 1
            comparison.largest = max(comparison.largest, apart)
        else:
            place = f"{path.removesuffix('[]')}[{at}]" if path.endswith("[]") else path
            part = f" (by {apart / size:.1e} of it)" if math.isfinite(apart) else ""
            comparison.failures.append(f"{place}: {before!r}, now {after!r}{part}")


def _apart(old: Leaf, new: Leaf) -> tuple[float, float]:
    """Return the distance, 0 if equal and infinite if not comparable, and the size."""
    if type(old) is not type(new):
        return math.inf, 0.0
    if old == new:
        return 0.0, 0.0
    if not isinstance(old, float) or not isinstance(new, float):
        return math.inf, 0.0
    if math.isnan(old) and math.isnan(new):
        return 0.0, 0.0
    if not (math.isfinite(old) and math.isfinite(new)):
        return math.inf, 0.0
    return abs(old - new), max(abs(old), abs(new))


def machine() -> str:
    """Return a short name for what decides the order of float32 sums."""
    processor = Path("/proc/cpuinfo")
    lines = processor.read_text().splitlines() if processor.exists() else []
    described = sorted({line for line in lines if line.startswith(("model name", "flags"))})
    versions = [importlib.metadata.version(name) for name in ("numpy", "torch", "transformers")]
    return hashlib.sha256("\n".join([*described, *versions]).encode()).hexdigest()[:16]


def _run(command: Command) -> tuple[Command, Leaves, float]:
    started = time.perf_counter()
    return command, run(command.arguments, text=command.text), time.perf_counter() - started


def _prepare() -> None:
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))


def run_all(commands: list[Command], workers: int) -> Iterator[tuple[Command, Leaves, float]]:
    """Yield every command with its leaves and seconds as it finishes; each worker imports once."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=_prepare) as pool:
        yield from pool.imap_unordered(_run, commands)


def refuse_to_store(commands: list[Command], every: list[Command]) -> str | None:
    """Return why this run cannot become the reference; None if it can."""
    if len(commands) != len(every):
        return "only a part of the commands"
    differ = subprocess.run(
        ["git", "diff", "--quiet", "HEAD", "--", *CODE], cwd=ROOT, check=False
    ).returncode
    return f"{', '.join(CODE)} have changes that are not committed" if differ else None


def commit() -> str:
    """Return the commit of the code that runs here."""
    shown = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return shown.stdout.strip()


def store(commands: list[Command], workers: int, checksum: str) -> None:
    """Run everything and store the results."""
    started = time.perf_counter()
    by_command, spent = {}, {}
    for command, leaves, seconds in run_all(commands, workers):
        by_command[command.name], spent[command.name] = leaves, seconds
    ordered = {command.name: by_command[command.name] for command in commands}
    about = {"commit": commit(), "machine": machine(), "tables": checksum}
    save(STORE, about, ordered)
    values = sum(len(items) for leaves in ordered.values() for items in leaves.values())
    codes = Counter(int(leaves["exit"][0]) for leaves in ordered.values())  # type: ignore[arg-type]
    print(
        f"{len(commands):,} commands, {values:,} values, exit codes {dict(sorted(codes.items()))}"
    )
    print(f"{STORE.relative_to(ROOT)}: {STORE.stat().st_size / 1e6:.2f} MB")
    _say_time(started, spent)
    _say_crashes(ordered)


def _say_crashes(by_command: dict[str, Leaves]) -> None:
    crashed = [name for name, leaves in by_command.items() if leaves["exit"] == [float(TRACEBACK)]]
    if crashed:
        print(f"stopped with a traceback, a bug in rcdiag: {', '.join(crashed)}")


def _say_time(started: float, spent: dict[str, float]) -> None:
    slowest = sorted(spent, key=spent.__getitem__, reverse=True)[:3]
    named = ", ".join(f"{name} {spent[name]:.1f} s" for name in slowest)
    print(f"{time.perf_counter() - started:.0f} s; the longest: {named}")


def check(
    commands: list[Command],
    workers: int,
    checksum: str,
    *,
    verbose: bool,
    exact: bool,
    every: bool,
) -> int:
    """Run commands, compare them, print the differences; return how many commands differ."""
    started = time.perf_counter()
    header, stored = load(STORE)
    if header["tables"] != checksum:
        print("the generated tables differ from those of the store: tools/net/tables.py changed")
        return 1
    elsewhere = header["machine"] != machine()
    if elsewhere:
        print("not the machine of the store: models are compared loosely")
    results: dict[str, Comparison] = {}
    fresh, spent = {}, {}
    for command, leaves, seconds in run_all(commands, workers):
        spent[command.name] = seconds
        fresh[command.name] = {"exit": leaves["exit"]}
        old = stored.get(command.name)
        comparison = Comparison(failures=["not in the store"])
        if old is not None:
            comparison = compare(
                command.name,
                old,
                leaves,
                partial(tolerance, command, exact=exact, elsewhere=elsewhere),
            )
        results[command.name] = comparison
        _say_command(command.name, comparison, verbose=verbose)
    _say_crashes(fresh)
    _say_all(results, every=every)
    _say_time(started, spent)
    left = [name for name in stored if every and name not in results]
    if left:
        print(f"FAILED: {len(left)} stored commands were not run: {', '.join(left[:5])}")
    return len(left) + sum(bool(comparison.failures) for comparison in results.values())


def _say_command(name: str, comparison: Comparison, *, verbose: bool) -> None:
    if comparison.failures:
        print(f"FAILED {name}: {len(comparison.failures):,} differ")
        shown = comparison.failures if verbose else comparison.failures[:5]
        for failure in shown:
            print(f"    {failure}")
        if len(shown) < len(comparison.failures):
            print(f"    ... and {len(comparison.failures) - len(shown):,} more (-v)")
    elif comparison.reordered:
        print(
            f"order  {name}: {comparison.reordered:,} numbers, by at most {comparison.largest:.1e}"
        )
    elif verbose:
        print(f"same   {name}: {comparison.same:,} values")


def _say_all(results: dict[str, Comparison], *, every: bool) -> None:
    """Print sums over all commands, and the paths with most differences and additions."""
    failed = [outcome for outcome in results.values() if outcome.failures]
    for title, paths in (
        ("differ", [text.partition(": ")[0] for outcome in failed for text in outcome.failures]),
        ("added, not compared", [path for outcome in results.values() for path in outcome.added]),
    ):
        if paths:
            print(f"{title}: {len(paths):,} leaves, most of all")
            for path, count in Counter(map(_general, paths)).most_common(12):
                print(f"    {count:9,}  {path}")
    used = {change for outcome in results.values() for change in outcome.used}
    for change in CHANGED:
        if every and change not in used:
            print(f"nothing matches this change any more: {change.old} ({change.reason})")
    print(
        f"{len(results):,} commands, {len(failed):,} failed; "
        f"{sum(outcome.same for outcome in results.values()):,} values the same, "
        f"{sum(outcome.reordered for outcome in results.values()):,} within the tolerance, "
        f"{sum(outcome.purposeful for outcome in results.values()):,} leaves changed on purpose"
    )


def _general(path: str) -> str:
    """Return a path with names and numbers replaced by `*`, so that equal kinds have one path."""
    path = re.sub(r"\b(corrections|presets|mismatch|families|pairs|profiles)/[^/]+", r"\1/*", path)
    return re.sub(r"(?<=/)\d+(?=/|$)|(?<=\[)\d+(?=\])", "*", path)


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if everything is the same, otherwise 1."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", action="store_true", help="write the reference again")
    parser.add_argument("--force", action="store_true", help="store whatever the code is")
    parser.add_argument("--quick", action="store_true", help="a part of the commands")
    parser.add_argument("--only", metavar="PATTERN", default="", help="commands by their name")
    parser.add_argument("--exact", action="store_true", help="no other order of sums either")
    parser.add_argument("--list", action="store_true", help="print the commands, run none")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="default 2")
    parser.add_argument("-v", "--verbose", action="store_true", help="every difference")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="same-results-") as folder:
        tables = Path(folder)
        every = all_commands(tables, Path("sample_data"))
        commands = [command for command in every if re.search(given.only, command.name)]
        commands = [command for command in commands if command.quick or not given.quick]
        if given.list:
            for command in commands:
                words = " ".join(command.arguments).replace(folder, "TABLES")
                print(f"{command.name}: rcdiag {words}")
            return 0
        checksum = write_tables(tables, Path("sample_data"))
        write_configs(tables)
        if not given.store:
            options: dict[str, Any] = {
                "verbose": given.verbose,
                "exact": given.exact,
                "every": commands == every,
            }
            return min(check(commands, given.workers, checksum, **options), 1)
        why = refuse_to_store(commands, every)
        if why and not given.force:
            print(f"not stored: {why} (--force)")
            return 1
        store(commands, given.workers, checksum)
        return 0


if __name__ == "__main__":
    sys.exit(main())
