"""Names that other trainers have for metrics: `gen_kl_error` is answered by the metric k3_kl."""

from __future__ import annotations

import re

from rcdiag.glossary import logged, metrics
from rcdiag.glossary.entry import Kind
from rcdiag.statistics.metrics import METRICS


def _aliases() -> dict[str, str]:
    """Keys of trainers whose own words rcdiag does not have -> the metric that they log."""
    keys = {
        key[0]: name
        for name, metric in METRICS.items()
        for text in metric.elsewhere.values()
        if (key := re.match(r"[\w/]+(?=$|:|,| \()", text))
    }
    return {key: name for key, name in keys.items() if logged.find(key) is None}


KIND: Kind = Kind(
    title="name of a metric elsewhere",
    plural="Names of metrics elsewhere",
    names=lambda: (),
    line=metrics.KIND.line,
    entry=metrics.entry,
    aliases=_aliases(),
)
