"""The tab Diagnosis: the cause, what to do, the evidence, and every number of the mismatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.formats import as_sentence, measured, number, shortened
from rcdiag.pages.blocks import (
    Block,
    Cell,
    Figures,
    Fold,
    Gauges,
    Lines,
    PageTable,
    Paragraph,
    Section,
    Slot,
    Tab,
    Terms,
    amount,
    code,
    metric,
    numbers,
    tab_of,
    table,
    term,
    text,
    words,
)
from rcdiag.pages.diagnose.words import posterior_rows
from rcdiag.pages.gauges import gauges
from rcdiag.pages.headline import Headline, answer, headline, with_findings
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.page_figures import figures_of
from rcdiag.pages.score.words import clusters, expected, lowered_levels
from rcdiag.pages.tabs.training_log import training_log
from rcdiag.results import Finding, MetricValue
from rcdiag.results.base import by_severity
from rcdiag.results.guide import Guide
from rcdiag.statistics.metrics import FAMILIES, METRICS

BY_STEP = ("mismatch-by-step", "tokens-beyond-2-by-step", "ess-by-step", "kappa-by-step")
# The page shows one of these at a time.
MORE_BY_STEP = (
    *("weights-by-step", "weights-ess-by-step", "rejected-by-step"),
    *("kl-by-step", "perplexity-ratio-by-step"),
)
# Metadata on which the meaning of log-probs depends: weights, distribution and engine.
LEADING = (
    "model",
    "weights_fingerprint",
    "temperature",
    "sampling_temperature",
    "backend",
    "dtype",
)
MOST_REASONS = 4  # reasons for ruled-out causes that are shown without folding
LONGEST = 44  # characters of a fact in the table of both sides
# Metadata that must be equal on both sides.
DECISIVE = ("model", "weights_fingerprint", "temperature", "sampling_temperature")


class Beyond(Struct, frozen=True, kw_only=True):
    """A number beyond its guide, as shown with a finding."""

    name: Cell
    value: str
    interval: str
    limits: str
    source: str


def tab(results: DumpResults) -> Tab:
    """Make the tab; it begins with the verdict, and what the file says about both sides."""
    line = headline_of(results)
    lead: list[list[Block]] = [[Slot(name="verdict", data=line)]]
    if metadata := _metadata(results):
        lead.append(metadata)
    return tab_of(
        "diagnosis",
        "Diagnosis",
        line.summary,
        Section(title="", blocks=[Slot(name="lead", data=lead)]),
        _gauges(results),
        _steps(results),
        *training_log(results.diagnose),
        _against(results),
        _findings(results),
        _experiments(results),
        _numbers(results),
    )


def headline_of(results: DumpResults) -> Headline:
    """Return the headline of the result whose diagnosis has the most evidence."""
    diagnosis = results.diagnosis
    judged = next((r for r in results.results if r.diagnosis is diagnosis), results.results[0])
    known = (results.score, results.compare, results.sweep, results.replay, judged)
    speaker = next(result for result in known if result is not None)
    numbers = with_findings(answer(speaker), speaker, findings_of(results))
    return replace(headline(judged, ""), about=headline(results.largest, "").about, numbers=numbers)


def findings_of(results: DumpResults) -> list[Finding]:
    """Return the distinct findings of all results, the most severe first."""
    unique: dict[tuple[str, str], Finding] = {}
    for result in results.results:
        for finding in result.findings:
            unique.setdefault((finding.slug, finding.message), finding)
    return by_severity(list(unique.values()))


def mismatch_of(results: DumpResults) -> Mapping[str, MetricValue]:
    """Return the metrics of the page's pair: from score, or from the pair in compare."""
    if results.score is not None:
        return results.score.mismatch
    if results.compare is not None:
        pair = results.compare.pairs.get("->".join(results.pair))
        return {} if pair is None else pair.mismatch
    return {}


def _gauges(results: DumpResults) -> Section | None:
    mismatch = mismatch_of(results)
    made = gauges(mismatch, results.measured_sequences) if mismatch else []
    if not made:
        return None
    blocks: list[Block] = [Gauges(items=made)]
    if why := lowered_levels(mismatch, results.diagnosis):
        blocks.append(Paragraph(text=why, soft=True))
    return Section(title="The numbers that decide", blocks=blocks)


def scoring_of(results: DumpResults) -> Mapping[str, Mapping[str, Any]]:
    """Return how each policy of the pair was scored, as far as the table's metadata tell."""
    if results.score is not None:
        return results.score.scoring
    if results.compare is not None:
        policies = results.compare.policies
        return {
            name: policies[name].scoring
            for name in results.pair
            if name in policies and policies[name].scoring
        }
    return {}


def _metadata(results: DumpResults) -> list[Block]:
    """Show the file metadata of both sides in one table; facts that agree are folded."""
    scoring = {name: dict(facts) for name, facts in scoring_of(results).items() if facts}
    sides = [name for name in results.pair if name in scoring]
    if len(sides) < 2:
        return []
    flat = [_flat(scoring[side]) for side in sides]
    names = list(dict.fromkeys(name for facts in flat for name in facts))
    leading = [
        name
        for name in names
        if name.split(".")[0] in LEADING and len({facts.get(name) for facts in flat}) > 1
    ]
    others = [name for name in names if name not in leading and name != "name"]
    label = "What the file says about both sides"
    if not leading:
        blocks: list[Block] = [
            Paragraph(text=f"{label} is the same in all facts that matter.", soft=True)
        ]
    else:
        blocks = [_facts("metadata", label, sides, flat, leading)]
    if not others:
        return blocks
    alike = sum(len({facts.get(name) for facts in flat}) == 1 for name in others)
    more = _facts("more-metadata", "More of what the file says", sides, flat, others)
    return [*blocks, Fold(label=f"{len(others)} more facts, {alike} of them equal", blocks=[more])]


def _facts(
    name: str,
    label: str,
    sides: Sequence[str],
    flat: Sequence[Mapping[str, str]],
    names: Sequence[str],
) -> PageTable:
    """Make a table of facts with a column for each side; those that must not differ come first."""
    values = {fact: [facts.get(fact) for facts in flat] for fact in names}
    differ = {fact for fact in names if len(set(values[fact])) > 1}
    wrong = {fact for fact in differ if fact.split(".")[0] in DECISIVE and None not in values[fact]}

    shown = {fact: _shortened_distinctly(values[fact]) for fact in names}
    return table(
        name,
        label,
        [
            words(
                "What the file says",
                lambda fact: text(shortened(fact.replace("_", " "), LONGEST)),
            ),
            *(
                words(side, {fact: _fact(shown[fact][place]) for fact in names}.__getitem__)
                for place, side in enumerate(sides)
            ),
        ],
        sorted(names, key=lambda fact: (fact not in wrong, fact not in differ)),
        lambda fact: {"tag": "differs" if fact in wrong else "", "pale": fact not in differ},
    )


def _shortened_distinctly(values: Sequence[str | None]) -> list[str | None]:
    """Shorten long values so that different ones stay different.

    If shortening in the middle makes them equal, their common beginning is dropped instead.
    """
    short = [value if value is None else shortened(value, LONGEST) for value in values]
    if len(set(short)) == len(set(values)):
        return short
    letters = zip(*(value for value in values if value is not None), strict=False)
    shared = next((place for place, some in enumerate(letters) if len(set(some)) > 1), 0)
    return [value and shortened(f"…{value[max(shared - 8, 0) :]}", LONGEST) for value in values]


def _fact(value: str | None) -> Cell:
    """Return the cell of a fact; of a fingerprint its beginning."""
    if value is None:
        return text("not stated")
    return code(f"{value[:8]}…" if len(value) == 32 and value.isalnum() else value)


def _flat(facts: Mapping[str, Any], head: str = "") -> dict[str, str]:
    """Flatten nested facts: `versions.torch` -> `2.8`."""
    flat: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{head}{name}.")
        elif value is not None:
            flat[f"{head}{name}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat


def _steps(results: DumpResults) -> Section | None:
    figures = figures_of(results.score, BY_STEP)
    if not figures:
        return None
    how = "Bands are 95% intervals over prompt groups, if there are any."
    blocks: list[Block] = [Paragraph(text=how, soft=True), Figures(items=figures)]
    if more := figures_of(results.score, MORE_BY_STEP):
        blocks.append(Figures(items=more, picker="Also by training step"))
    return Section(title="Over the training steps", blocks=blocks, name="steps")


def _against(results: DumpResults) -> Section | None:
    """Say which other causes are possible, and which are ruled out and why."""
    diagnosis = results.diagnosis
    if diagnosis is None:
        return None
    blocks: list[Block] = []
    possible = [slug for cause in diagnosis.causes[:1] for slug in cause.also_possible]
    if possible:
        blocks.append(Paragraph(text="The evidence also fits these causes:"))
        blocks.append(Terms(items=[(slug, "") for slug in possible]))
    if diagnosis.ruled_out:
        reasons = Terms(items=headline_of(results).ruled_out)
        if len({reason for _, reason in reasons.items}) > MOST_REASONS:
            count = len(diagnosis.ruled_out)
            blocks.append(Fold(label=f"{count} causes are ruled out, and why", blocks=[reasons]))
        else:
            why = ", and why" if any(reason for _, reason in reasons.items) else ""
            blocks += [Paragraph(text=f"Ruled out{why}:"), reasons]
    return Section(title="What else it could be", blocks=blocks) if blocks else None


def _findings(results: DumpResults) -> Section | None:
    findings = findings_of(results)
    if not findings:
        return None
    mismatch = mismatch_of(results)
    shown = [(finding, _beyond(finding, mismatch)) for finding in findings]
    return Section(title="Findings", blocks=[Slot(name="findings", data=shown)], name="findings")


def _beyond(finding: Finding, mismatch: Mapping[str, MetricValue]) -> list[Beyond]:
    """Return the numbers beyond their guides that a finding is about; empty for other findings.

    Metrics that are beyond only by expected rounding are named in the text of the finding.
    """
    of_family = any(family.slug == finding.slug for family in FAMILIES.values())
    if not of_family or finding.severity not in ("warning", "error"):
        return []
    made = []
    for name, value in finding.evidence.items():
        number_here, guide = mismatch.get(name), METRICS[name].guide if name in METRICS else None
        if number_here is None or guide is None or number_here.value != value:
            return []  # the finding is about one step, or about other tokens than the page
        bounds = _limits(guide, number_here).text
        value_here, interval = measured(number_here)
        made.append(
            Beyond(
                name=term(name),
                value=value_here,
                interval=interval,
                limits=f"{number_here.level}; {bounds}" if bounds else str(number_here.level),
                source=guide.source,
            )
        )
    return made


def _experiments(results: DumpResults) -> Section | None:
    result = results.diagnose
    if result is None or result.trainer_model is None:
        return None
    figures = figures_of(result)
    # On a page of `diagnose` alone the headline already says this.
    blocks: list[Block] = (
        [] if len(results.results) == 1 else [Paragraph(text=as_sentence(answer(result)))]
    )
    if figures:
        blocks.append(Figures(items=figures))
    lines = posterior_rows(result)
    if result.open:
        lines = [*lines, f"Not run for lack of time: {', '.join(result.open)}"]
    if lines:
        blocks.append(Lines(items=lines))
    return Section(title="Experiments", blocks=blocks, name="experiments") if blocks else None


def _numbers(results: DumpResults) -> Section | None:
    mismatch = mismatch_of(results)
    if not mismatch:
        return None
    if all(value.value is None for value in mismatch.values()):
        none = f"None of the {len(mismatch)} numbers can be computed from these log-probs."
        return Section(title="All numbers", blocks=[Paragraph(text=none)], name="numbers")
    first_of = {
        next(name for name in family.metrics if name in mismatch): family.question
        for family in FAMILIES.values()
        if any(name in mismatch for name in family.metrics)
    }
    described = {
        name: f"{METRICS[name].label}{f', {unit}' if (unit := METRICS[name].unit) else ''}"
        for name in mismatch
    }
    levels = {name: value.level or "" for name, value in mismatch.items()}
    metrics = table(
        "numbers",
        "All numbers of the mismatch",
        [
            words("Metric", lambda name: term(name, note=described[name])),
            numbers(
                "Value, 95% interval",
                lambda name: (
                    text("n/a", order=nan)
                    if mismatch[name].value is None
                    else metric(mismatch[name])
                ),
            ),
            words("Level", lambda name: text(levels[name], level=levels[name])),
            numbers("Expected", lambda name: _expected(name, mismatch[name])),
            words("Limits", lambda name: _limits(METRICS[name].guide, mismatch[name])),
        ],
        [name for family in FAMILIES.values() for name in family.metrics if name in mismatch],
        lambda name: {"key": name, "group": first_of.get(name, "")},
        search=True,
    )
    made_from = clusters(results.score) if results.score is not None else "clusters of rows"
    how = (
        f"Intervals are 95% intervals by cluster: {made_from} are left out one by one (jackknife, "
        "widened for few, unequal and skewed ones), since tokens of one prompt are not "
        "independent. An end is not observable if it depends on ratios so rare that this "
        "sample may miss them. Minima and maxima have no interval."
    )
    if results.score is not None and results.score.num_clusters < 2:
        how = (
            "There are no intervals by cluster: they are made by leaving out one prompt group at a "
            "time, and the table has only one."
        )
    return Section(
        title="All numbers",
        blocks=[Paragraph(text=how, soft=True), metrics],
        name="numbers",
        screen=True,
    )


def _expected(name: str, value: MetricValue) -> Cell:
    order = METRICS[name].ideal if value.expected is None else value.expected
    return amount(order, expected(name, value))


def _limits(guide: Guide | None, value: MetricValue) -> Cell:
    """Return the limits by which the level was chosen, and their source.

    If limits depend on the table because rounding moves the metric, the source explains them.
    """
    if guide is None or value.level is None:
        return text("")
    written = "" if value.expected is not None else guide.limits(number)
    return text(written, note=guide.source)
