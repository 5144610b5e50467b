"""Results whose names, paths and texts try to break the page."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from msgspec import structs

from rcdiag.results import Finding, MetricValue, Result, from_json, to_json
from rcdiag.table.opening import open_table
from rcdiag.table.table import Table
from rcdiag.trainers import find_trainer
from rcdiag.trainers.plan import plan_corrections, preset_configs
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.score import score
from tests.builders import ids_like, write_table

IMAGE = "<img src=x onerror=window.hacked=1>"
SCRIPT = "</script><script>window.hacked=1</script>"
STYLE = "\"'--></style></svg><style>main{display:none}</style>"
LONG = "unbroken" * 25
EVIL = IMAGE + SCRIPT + STYLE
# Policy names have only letters, digits, _ and -; a result file may hold anything.
NAMES = {"badone": EVIL, "badtwo": LONG, "badthree": f"{SCRIPT}{LONG}{IMAGE}"}
NAN, INFINITE = float("nan"), float("inf")
FIRST = [[-0.1, -1.0, -INFINITE], [-0.5], [-3.0, -0.5], [-0.2, -1e30]]
SECOND = [[-0.1, NAN, -2.0], [-INFINITE], [-5.0, -0.4], [-1e30, -0.3]]
THIRD = [[-0.2, -1.1, -2.0], [-0.6], [-4.0, -0.1], [-0.1, -0.2]]


def hostile_table(folder: Path) -> Table:
    path = folder / f"{IMAGE}{LONG[:150]}.parquet"
    write_table(
        path,
        response_ids=ids_like(FIRST),
        badone_log_probs=FIRST,
        badtwo_log_probs=SECOND,
        badthree_log_probs=THIRD,
        reward=[1.0, NAN, -INFINITE, 0.0],
        sample_id=[EVIL, LONG, "a", "b"],
        step=[1, 1, 2, 2],
    )
    return open_table(path)


def hostile_score() -> Result:
    verl = find_trainer("verl")
    plan = plan_corrections(verl, preset_configs(verl, [], {}))
    with tempfile.TemporaryDirectory() as folder:
        result = score(
            hostile_table(Path(folder)),
            behavior="badone",
            target="badtwo",
            decode=lambda ids: [(EVIL, LONG, "\n\t\0")[item % 3] for item in ids],
            plan=plan,
        )
    about = {"badone": {"model": EVIL, "backend": LONG}}
    return renamed(structs.replace(result, scoring=about, mismatch=odd(result.mismatch)))


def hostile_compare() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        result = compare(hostile_table(Path(folder)), behavior="badone", target="badtwo")
    return renamed(result)


def odd(mismatch: dict[str, MetricValue]) -> dict[str, MetricValue]:
    """Replace every number by NaN or an infinity."""
    values = (NAN, INFINITE, -INFINITE, None, 1e300)
    return {
        name: structs.replace(item, value=values[i % 5], low=-INFINITE, high=NAN)
        for i, (name, item) in enumerate(mismatch.items())
    }


def renamed(result: Result) -> Result:
    """Insert hostile policy names everywhere, and a hostile finding."""
    evil = Finding(slug=LONG, severity="warning", message=EVIL, fix=LONG, evidence={EVIL: NAN})
    text = to_json(structs.replace(result, findings=[*result.findings, evil]))
    for name, other in NAMES.items():
        text = text.replace(name, json.dumps(other)[1:-1])
    return from_json(text, "hostile.json")
