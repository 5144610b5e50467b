"""The tab Change: two dumps side by side, and whether the second is better than the first."""

from __future__ import annotations

import math

from rcdiag.errors import RcdiagError
from rcdiag.pages.blocks import (
    Block,
    Paragraph,
    Section,
    Slot,
    Tab,
    Terms,
    metric,
    numbers,
    tab_of,
    table,
    term,
    text,
    words,
)
from rcdiag.pages.gauges import gauges_of_two
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.tabs.diagnosis import headline_of, mismatch_of
from rcdiag.results import MetricValue
from rcdiag.statistics.metrics import FAMILIES, METRICS

ORDER = ("healthy", "correctable", "inconclusive", "broken")  # verdicts, the best first
# How a metric moved beyond both intervals: the word in the table, and in the sentence.
MOVED = {"better": "better", "worse": "worse", "moved": "moved without being better or worse"}
LEVELS = {"better": "ok", "worse": "error", "no interval": "unknown", "not known": "unknown"}


def tab(before: DumpResults, after: DumpResults) -> Tab:
    """Make the tab."""
    if not mismatch_of(before) and not mismatch_of(after) and before.diagnosis is None:
        raise RcdiagError(
            "nothing to compare side by side: neither result has a mismatch or a diagnosis",
            hint="give results of rcdiag score, of both dumps",
        )
    return tab_of(
        "change",
        "Change",
        verdict(before, after),
        _same(before, after),
        _sides(before, after),
        _gauges(before, after),
        _causes(before, after),
        _numbers(before, after),
    )


def verdict(before: DumpResults, after: DumpResults) -> str:
    """Say in a sentence whether the second dump is better than the first."""
    gone, new, _ = causes(before, after)
    moved = [change(name, *pair) for name, pair in common_metrics(before, after).items()]
    counts = [f"{moved.count(word)} {said}" for word, said in MOVED.items() if word in moved]
    numbers = "no number moved beyond both intervals"
    if counts:
        numbers = f"beyond both intervals {', '.join(counts)}"
    one, two = before.verdict, after.verdict
    if one is None or two is None:
        return numbers
    steps = f"verdict {one}, then {two}" if one != two else f"verdict {one} both times"
    if gone and not new:
        answer = "It helped" if ORDER.index(two) <= ORDER.index(one) else "Other trouble"
        return f"{answer}: {', '.join(gone)} is gone; {steps}; {numbers}"
    if new:
        return f"Something new: {', '.join(new)}; {steps}; {numbers}"
    return f"The cause is still there: {steps}; {numbers}"


def causes(before: DumpResults, after: DumpResults) -> tuple[list[str], list[str], list[str]]:
    """Return the faults that are gone, new, and still there; rounding is not a fault.

    A cause that one side names without a verdict is neither gone nor new.
    """
    one, two = (_named(dump) for dump in (before, after))
    faults = [
        [slug for slug, verdict in named.items() if verdict not in ("healthy", "inconclusive")]
        for named in (one, two)
    ]
    return (
        [slug for slug in faults[0] if slug not in two],
        [slug for slug in faults[1] if slug not in one],
        [slug for slug in one if slug in two and (slug in faults[0] or slug in faults[1])],
    )


def _named(dump: DumpResults) -> dict[str, str]:
    """Return the verdict of each cause that a dump's diagnosis names."""
    named = [] if dump.diagnosis is None else dump.diagnosis.causes
    return {cause.slug: cause.verdict for cause in named}


def common_metrics(
    before: DumpResults, after: DumpResults
) -> dict[str, tuple[MetricValue, MetricValue]]:
    """Return the metrics that both dumps have, in the order of the families."""
    one, two = mismatch_of(before), mismatch_of(after)
    names = [name for family in FAMILIES.values() for name in family.metrics]
    return {name: (one[name], two[name]) for name in names if name in one and name in two}


def change(name: str, before: MetricValue, after: MetricValue) -> str:
    """Say whether a metric moved beyond both intervals, and if it is nearer to its ideal."""
    if before.value is None or after.value is None:
        return "not known"
    ends = (before.low, before.high, after.low, after.high)
    known = [end for end in ends if end is not None and not math.isnan(end)]
    if len(known) < len(ends):
        return "no interval"
    low_before, high_before, low_after, high_after = known
    if low_after <= high_before and low_before <= high_after:
        return "within the intervals"
    ideal = METRICS[name].ideal
    if ideal is None:
        return "moved"
    return "better" if abs(after.value - ideal) < abs(before.value - ideal) else "worse"


def _same(before: DumpResults, after: DumpResults) -> Section | None:
    """Warn if both sides are one pair of policies in one table."""
    one, two = (dump.results[0].provenance.get("fingerprint") for dump in (before, after))
    if one is None or one != two or before.pair != after.pair:
        return None
    same = Paragraph(
        text="Before and after are the same data: one table, one pair of policies.",
        level="warning",
    )
    return Section(title="", blocks=[same])


def _sides(before: DumpResults, after: DumpResults) -> Section:
    sides = [
        {"word": word, "headline": headline_of(dump), "dump": dump.dump}
        for word, dump in (("Before", before), ("After", after))
    ]
    return Section(title="", blocks=[Slot(name="sides", data=sides)])


def _gauges(before: DumpResults, after: DumpResults) -> Section | None:
    """Show the headline metrics of both dumps as gauges on one scale."""
    one, two = ((mismatch_of(dump), dump.measured_sequences) for dump in (before, after))
    pairs = gauges_of_two(one, two)
    if not pairs:
        return None
    rows = [dict(zip(("before", "after"), pair, strict=True)) for pair in pairs]
    return Section(title="The numbers that decide", blocks=[Slot(name="gauge-pairs", data=rows)])


def _causes(before: DumpResults, after: DumpResults) -> Section | None:
    blocks: list[Block] = []
    heads = ("Gone:", "New:", "Still there:")
    for head, slugs in zip(heads, causes(before, after), strict=True):
        if slugs:
            blocks += [Paragraph(text=head), Terms(items=[(slug, "") for slug in slugs])]
    return Section(title="Causes", blocks=blocks) if blocks else None


def _numbers(before: DumpResults, after: DumpResults) -> Section | None:
    pairs = common_metrics(before, after)
    if not pairs:
        return None
    words_of = {name: change(name, *pair) for name, pair in pairs.items()}
    changes = table(
        "changes",
        "Numbers before and after",
        [
            words("Metric", lambda name: term(name, note=METRICS[name].label)),
            numbers("Before", lambda name: metric(pairs[name][0])),
            numbers("After", lambda name: metric(pairs[name][1])),
            words(
                "Change",
                lambda name: text(words_of[name], level=LEVELS.get(words_of[name], "")),
            ),
        ],
        sorted(pairs, key=lambda name: words_of[name] not in MOVED),
        lambda name: {
            "key": name,
            "tag": "moved" if words_of[name] in MOVED else "",
            "pale": words_of[name] not in MOVED,
        },
        search=True,
    )
    how = (
        "A number moved if its 95% intervals before and after do not overlap; better means nearer "
        "to its ideal. Dumps with other prompts or lengths differ for that reason, too."
    )
    return Section(title="Which numbers moved", blocks=[changes, Paragraph(text=how, soft=True)])
