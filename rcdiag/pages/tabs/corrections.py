"""The tab Corrections: presets and swept settings in one table, and what to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rcdiag.pages.blocks import (
    Block,
    Column,
    Figure,
    Figures,
    Fold,
    Lines,
    Part,
    Row,
    Section,
    Snippet,
    Tab,
    Table,
    Words,
    amount,
    equals,
    metric,
    share,
    term,
    text,
)
from rcdiag.pages.charts import Axis, Chart
from rcdiag.pages.drawn import figures_of
from rcdiag.pages.merge import DumpResults
from rcdiag.pages.score.logged import lines_of
from rcdiag.pages.score.words import raw_ess
from rcdiag.pages.sweep.words import ANSWERS, forecast_test
from rcdiag.results import CorrectionResult, ScoreResult, SweepResult, SweepRow
from rcdiag.results.sweep import Candidate

NONE = "none"  # the candidate without any correction
PICKED = "token_tis"  # the family that the sliders start with where nothing is recommended


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What one correction does to the table; presets and candidates with equal numbers share it."""

    names: tuple[str, ...]
    kept_tokens: int
    kept_sequences: int
    ess_token: float | None
    ess_seq: float | None
    bias: float | None = None
    variance: float | None = None
    bias_bound: float | None = None
    lost: float | None = None
    level: str = ""
    candidate: Candidate | None = None
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the numbers by which corrections are told apart."""
        sizes = (_digits(self.ess_token), _digits(self.ess_seq))
        return (self.kept_tokens, self.kept_sequences, *sizes)

    @property
    def error(self) -> float | None:
        """Return the expected squared error of the gradient, in units of uncorrected noise."""
        if self.candidate is None or self.candidate.gradient_noise is None:
            return None
        return (self.candidate.gradient_bias or 0.0) + self.candidate.gradient_noise


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def tab(results: DumpResults) -> Tab | None:
    """Fill the tab; None where neither presets nor a sweep are known."""
    treatments = treatments_of(results)
    if not treatments:
        return None
    sections = [
        _advice(results),
        _table(results, treatments),
        _logged(results.score),
        _sliders(results),
        _forecast(results.sweep),
    ]
    return Tab(
        name="corrections",
        title="Corrections",
        heading=_heading(results),
        sections=[section for section in sections if section is not None],
    )


def _heading(results: DumpResults) -> str:
    if not results.mends:
        return "No correction mends this: fix the cause first"
    if results.sweep is None:
        return "What each preset would have done"
    advice = results.sweep.recommendation
    choice = f" {advice.choice}" if advice.answer == "correct" else ""
    sentence = f"{ANSWERS[advice.answer]}{choice}"
    return f"{sentence[0].upper()}{sentence[1:]}"


def treatments_of(results: DumpResults) -> list[Treatment]:
    """Return what every preset and candidate does, equal ones once, in the order of the table."""
    swept = _rows_by_key(results.sweep)
    single = [
        *_of_presets(results.score, swept),
        *_of_candidates(results.sweep),
    ]
    merged: dict[tuple[Any, ...], Treatment] = {}
    for treatment in single:
        known = merged.get(treatment.key)
        merged[treatment.key] = treatment if known is None else _joined(known, treatment)
    return sorted(merged.values(), key=lambda treatment: _order(treatment, results.mends))


def _order(treatment: Treatment, ranked: bool) -> tuple[bool, float]:
    """Put the least expected error first, then what is refused, then what was not estimated."""
    refused = treatment.candidate is not None and bool(treatment.candidate.refused)
    if not ranked or treatment.error is None:
        return (True, float("inf"))
    return (refused, treatment.error)


def _joined(one: Treatment, other: Treatment) -> Treatment:
    """Put two equal treatments into one, with all that is known of either."""
    filled = {
        name: value
        for name in ("bias", "variance", "bias_bound", "lost", "candidate")
        if getattr(one, name) is None and (value := getattr(other, name)) is not None
    }
    names = tuple(dict.fromkeys([*one.names, *other.names]))
    names = (NONE, *(name for name in names if name != NONE)) if NONE in names else names
    return replace(one, names=names, level=one.level or other.level, **filled)


def _of_presets(
    result: ScoreResult | None, swept: Mapping[tuple[Any, ...], SweepRow]
) -> list[Treatment]:
    corrections = {} if result is None else result.corrections
    made = [_of_preset(name, correction) for name, correction in corrections.items()]
    return [_with_sweep(treatment, swept.get(treatment.key)) for treatment in made]


def _of_preset(name: str, correction: CorrectionResult) -> Treatment:
    actual = correction.actual
    lost = [actual[f"lost_target_mass_{level}"] for level in ("token", "seq")]
    return Treatment(
        names=(name,),
        kept_tokens=correction.kept_tokens,
        kept_sequences=correction.kept_sequences,
        ess_token=actual["ess_token_applied"],
        ess_seq=actual["ess_seq_applied"],
        bias_bound=actual["bias_bound"],
        lost=max((part for part in lost if part is not None), default=None),
        level=correction.level or "",
    )


def _with_sweep(treatment: Treatment, row: SweepRow | None) -> Treatment:
    """Add bias and variance where a swept setting does the same to the table."""
    if row is None:
        return treatment
    return replace(treatment, bias=row.weight_distance, variance=row.weight_variance)


def _rows_by_key(sweep: SweepResult | None) -> dict[tuple[Any, ...], SweepRow]:
    families = {} if sweep is None else sweep.families
    rows = [row for family in families.values() for row in family.rows]
    return {_of_row("", row).key: row for row in rows}


def _of_row(name: str, row: SweepRow) -> Treatment:
    return Treatment(
        names=(name,),
        kept_tokens=row.kept_tokens,
        kept_sequences=row.kept_sequences,
        ess_token=row.ess_token_applied,
        ess_seq=row.ess_seq_applied.value,
        bias=row.weight_distance,
        variance=row.weight_variance,
        bias_bound=row.bias_bound,
        lost=row.lost_mass.value,
    )


def _of_candidates(sweep: SweepResult | None) -> list[Treatment]:
    if sweep is None:
        return []
    made = []
    for candidate in sweep.recommendation.candidates:
        row = _row_of(sweep, candidate)
        if row is not None:
            made.append(replace(_of_row(candidate.name, row), candidate=candidate))
        elif candidate.name == NONE:
            whole = Treatment(
                names=(NONE,),
                kept_tokens=sweep.num_tokens,
                kept_sequences=sweep.num_sequences,
                ess_token=1.0,
                ess_seq=1.0,
                variance=0.0,
                candidate=candidate,
            )
            made.append(whole)
    return made


def _row_of(sweep: SweepResult, candidate: Candidate) -> SweepRow | None:
    family = sweep.families.get(candidate.family)
    rows = [] if family is None else family.rows
    return next((row for row in rows if row.bounds == candidate.bounds), None)


def _advice(results: DumpResults) -> Section | None:
    against = None if results.diagnosis is None else results.diagnosis.against_weights
    if against is not None:
        why = (
            f"{against} The table shows what each correction would do; it ranks "
            "nothing and recommends nothing."
        )
        return Section(title="", blocks=[Words(text=why, level="error")])
    if results.sweep is None:
        return None
    advice = results.sweep.recommendation
    blocks: list[Block] = [Lines(items=[_sentence(reason) for reason in advice.reasons])]
    verdict = None if results.diagnosis is None else results.diagnosis.verdict
    if verdict == "correct" and advice.answer == "do-not-correct":
        why = (
            "The verdict `correct` says that weights are valid here; on a table of this size they "
            "add more noise than they take away bias. Mend the cause instead."
        )
        blocks.append(Words(text=why))
    snippets = [
        Snippet(label=f"To paste into {trainer}", text=written, opened=place == 0)
        for place, (trainer, written) in enumerate(advice.choice_yaml.items())
    ]
    blocks += snippets[:1]
    if others := snippets[1:]:
        blocks.append(Fold(label=f"{len(others)} other trainers", blocks=list(others)))
    if not advice.choice_yaml and not _stored(results.sweep):
        older = (
            "This result holds no configuration to paste: an older rcdiag made it. `rcdiag sweep` "
            "on the same table makes one that does."
        )
        blocks.append(Words(text=older))
    return Section(title="Why", blocks=blocks)


def _stored(sweep: SweepResult) -> bool:
    return any(family.configurations for family in sweep.families.values())


def _sentence(words: str) -> str:
    return words if words.endswith(".") else f"{words}."


def _table(results: DumpResults, treatments: Sequence[Treatment]) -> Section:
    estimated = results.mends and any(treatment.error is not None for treatment in treatments)
    with_sweep = results.sweep is not None
    columns = [
        Column(head="Correction"),
        *([Column(head="Level")] if results.mends else []),
        *([Column(head="Expected error", numbers=True)] if estimated else []),
        *([Column(head="Gradient bias²", numbers=True, term="gradient_bias")] if estimated else []),
        *(
            [Column(head="Gradient noise", numbers=True, term="gradient_noise")]
            if estimated
            else []
        ),
        *([Column(head="Weight bias", numbers=True, term="weight_distance")] if with_sweep else []),
        *([Column(head="Variance", numbers=True, term="weight_variance")] if with_sweep else []),
        Column(head="Bias bound", numbers=True, term="bias_bound"),
        Column(head="Kept tokens", numbers=True, term="kept_tokens"),
        Column(head="Kept sequences", numbers=True, term="kept_sequences"),
        Column(head="ESS tokens", numbers=True, term="ess_token_applied"),
        Column(head="ESS sequences", numbers=True, term="ess_seq_applied"),
        Column(head="Lost mass", numbers=True, term="lost_mass"),
    ]
    table = Table(
        name="corrections-table",
        label="Presets and swept settings",
        columns=columns,
        rows=[_row(treatment, results, estimated, with_sweep) for treatment in treatments],
        search=True,
        opens="correction",
    )
    blocks: list[Block] = []
    figures = [_scatter(treatments, results)] if with_sweep else []
    figures += [f for f in figures_of(results.sweep) if f.name == "candidate-ranking"]
    blocks += [Figures(items=figures)] if figures else []
    blocks += [table, Words(text=_how(results, estimated), soft=True)]
    return Section(title="All corrections", blocks=blocks)


def _how(results: DumpResults, estimated: bool) -> str:
    sentences = [
        "Corrections with equal numbers on this table share a row; a row opens to its settings and "
        "what the trainer logs.",
        "Numbers count valid sequences only; ESS is that of the weights as they enter the loss, 0 "
        "for rejected tokens. ESS of token weights and of sequence weights cannot be compared: "
        "token weights are steadier and farther from the truth, which is the weight bias.",
    ]
    raw = "" if results.score is None else raw_ess(results.score)
    if raw:
        sentences.append(f"ESS {raw}.")
    if estimated and results.sweep is not None:
        sentences.append(
            "Expected error is gradient bias² plus noise, in units of the noise without "
            f"correction. {results.sweep.recommendation.method}"
        )
    if results.score is not None and results.score.steps:
        sentences.append("The whole table counts as one batch; each step by itself is in the JSON.")
    return " ".join(sentences)


def _row(treatment: Treatment, results: DumpResults, estimated: bool, with_sweep: bool) -> Row:
    largest = results.largest
    whole_tokens, whole_sequences = largest.num_tokens, largest.num_sequences
    if results.score is not None:
        whole_tokens, whole_sequences = results.score.num_tokens, results.score.num_sequences
    elif results.sweep is not None:
        whole_tokens, whole_sequences = results.sweep.num_tokens, results.sweep.num_sequences
    candidate = treatment.candidate
    refused = candidate.refused if candidate is not None and results.mends else []
    cells = [equals(treatment.names)]
    if results.mends:
        cells.append(text(treatment.level, level=treatment.level, note=_refused(refused)))
    if estimated:
        cells += [
            amount(treatment.error),
            amount(None if candidate is None else candidate.gradient_bias),
            amount(None if candidate is None else candidate.gradient_noise),
        ]
    if with_sweep:
        cells += [amount(treatment.bias), amount(treatment.variance)]
    cells += [
        amount(treatment.bias_bound),
        share(treatment.kept_tokens / max(whole_tokens, 1)),
        share(treatment.kept_sequences / max(whole_sequences, 1)),
        share(treatment.ess_token),
        share(treatment.ess_seq),
        share(treatment.lost),
    ]
    return Row(
        cells=cells,
        key=treatment.names[0],
        names=treatment.names,
        tag=_tag(treatment, results),
        pale=bool(refused),
    )


def _refused(reasons: Sequence[str]) -> str:
    """Say the first reason against a correction, and how many more there are."""
    if not reasons:
        return ""
    more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"refused: {reasons[0]}{more}"


def recommended(results: DumpResults) -> Treatment | None:
    """Return the treatment that the sweep recommends, with the presets that do the same."""
    choice = None if results.sweep is None else results.sweep.recommendation.choice
    if choice is None or not results.mends:
        return None
    return next(
        (treatment for treatment in treatments_of(results) if choice in treatment.names), None
    )


def _tag(treatment: Treatment, results: DumpResults) -> str:
    sweep = results.sweep
    if sweep is None or not results.mends:
        return ""
    if sweep.recommendation.choice in treatment.names:
        return "recommended"
    equal = set(sweep.recommendation.indistinguishable) & set(treatment.names)
    return "as good" if equal else ""


def _scatter(treatments: Sequence[Treatment], results: DumpResults) -> Figure:
    """Set bias against what the weights leave, a point for each row of the table."""
    chart = Chart(
        form="scatter",
        columns=("correction", "weight bias", "ESS of sequences", "variance", "note"),
        rows=[
            (
                treatment.names[0],
                treatment.bias,
                treatment.ess_seq,
                treatment.variance,
                _tag(treatment, results) or ", ".join(treatment.names[1:]),
            )
            for treatment in treatments
            if treatment.bias is not None and treatment.ess_seq is not None
        ],
        x=Axis(label="weight bias: distance from the ratios of whole sequences", start=0.0),
        y=Axis(label="ESS of sequences, applied", percent=True, start=0.0, end=1.0),
        options={
            "at": ["weight bias", "ESS of sequences"],
            "emphasis": (recommended(results) or treatments[0]).names[0]
            if recommended(results)
            else "",
            "opens": "correction",
        },
    )
    return Figure(
        name="bias-and-variance",
        title="Bias against what the weights leave",
        caption="A point is a row of the table below: a click opens that row, and the row that "
        "the mouse or the keyboard is on has a ring here. Left is "
        "less bias, up is less variance. Corrections whose bias was not swept have no point.",
        chart=chart.data(),
    )


def _sliders(results: DumpResults) -> Section | None:
    sweep = results.sweep
    if sweep is None or not sweep.families:
        return None
    start = _start(results, sweep)
    part = Part(
        name="sliders",
        data={
            "families": {name: family.title for name, family in sweep.families.items()},
            "start": start,
        },
    )
    blocks: list[Block] = [Words(text=_from(results, sweep, start["family"]), soft=True), part]
    return Section(title="Try other bounds", blocks=blocks, name="bounds", screen=True)


def _from(results: DumpResults, sweep: SweepResult, family: str) -> str:
    """Say where the sliders start, and what they write."""
    choice = sweep.recommendation.choice if results.mends else None
    chosen = choice is not None and choice != NONE
    common = f"The sliders start at the common bound of {sweep.families[family].title}"
    if chosen:
        start = f"The sliders start at the recommendation, `{choice}`"
    elif results.mends and choice == NONE:
        start = f"{common}: the recommendation is no correction, which has no bounds"
    else:
        start = f"{common}: nothing is recommended"
    return f"{start}. Below the curves stands the trainer's configuration of what they show."


def _logged(score: ScoreResult | None) -> Section | None:
    """Set the trainer's own log beside our numbers, what differs first."""
    logged = None if score is None else score.logged
    if logged is None:
        return None
    preset = f"preset `{logged.preset}`: {logged.preset_reason}"
    beside = preset if logged.preset else "the mismatch"
    steps = f" Steps: {logged.step_reason}." if logged.step_reason else ""
    how = (
        f"`{logged.file}` ({logged.log_format}) beside {beside}.{steps} A key stands here with the "
        "step at which it is furthest off; the result document has every step."
    )
    table = Table(
        name="logged",
        label="The trainer's own log",
        columns=[
            Column(head="Key"),
            Column(head="Step", numbers=True),
            Column(head="Theirs", numbers=True),
            Column(head="Ours", numbers=True),
            Column(head="Reads"),
        ],
        rows=[
            Row(
                cells=[
                    term(line.key),
                    text(line.step),
                    text(line.theirs),
                    text(line.ours),
                    text(line.reads, level="ok" if line.agrees else "", note=line.reason),
                ]
            )
            for line in lines_of(logged)
        ],
        search=True,
    )
    blocks: list[Block] = [Words(text=how), table]
    for keys, what in (
        (list(logged.not_ours), "keys of the log that are no numbers of rcdiag"),
        (logged.not_logged, "keys that the log lacks"),
    ):
        if keys:
            blocks.append(Fold(label=f"{len(keys)} {what}", blocks=[Lines(items=keys)]))
    return Section(title="The trainer's own log", blocks=blocks, name="logged")


def _start(results: DumpResults, sweep: SweepResult) -> dict[str, Any]:
    """Return family and row that the sliders start at: the recommendation, or the common bound."""
    choice = sweep.recommendation.choice if results.mends else None
    candidates = {candidate.name: candidate for candidate in sweep.recommendation.candidates}
    chosen = candidates.get(choice or "")
    if chosen is not None and chosen.family in sweep.families:
        family = chosen.family
        bounds = chosen.bounds
    else:
        family = PICKED if PICKED in sweep.families else next(iter(sweep.families))
        bounds = {sweep.families[family].axis: 2.0}
    rows = sweep.families[family].rows
    nearest = min(range(len(rows)), key=lambda place: _distance(rows[place].bounds, bounds))
    return {"family": family, "row": nearest}


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return sum(abs(one[name] - bound) for name, bound in other.items() if name in one)


def _forecast(sweep: SweepResult | None) -> Section | None:
    if sweep is None or not (sweep.forecast.points or sweep.forecast.held_out):
        return None
    test = forecast_test(sweep.forecast)
    fails = sweep.forecast.holds is False
    missed = " It is not drawn; the table shows what it missed." if fails else ""
    blocks: list[Block] = [
        Words(text=f"Forecast: {test.word}; {test.sentence}.{missed}", level=test.level)
    ]
    figures = figures_of(sweep, ("length-forecast",))
    if figures:
        blocks.append(Figures(items=figures))
    if sweep.forecast.held_out:
        blocks.append(_held_out(sweep))
    blocks.append(Words(text=sweep.forecast.about, soft=True))
    return Section(title="Longer responses", blocks=blocks, name="forecast", screen=True)


def _held_out(sweep: SweepResult) -> Table:
    heads = ("Geometric window", "Sequence window", "Spread of sums")
    return Table(
        name="held-out",
        label="Held-out lengths",
        columns=[
            Column(head="Held-out lengths"),
            Column(head="Sequences", numbers=True),
            *(
                Column(head=f"{head}: {what}", numbers=True)
                for head in heads
                for what in ("expected", "seen")
            ),
        ],
        rows=[
            Row(
                cells=[
                    text(bin_.label),
                    amount(float(bin_.num_sequences), f"{bin_.num_sequences:,}"),
                    amount(bin_.expected_geo),
                    metric(bin_.seen_geo),
                    amount(bin_.expected_seq),
                    metric(bin_.seen_seq),
                    amount(bin_.expected_std),
                    metric(bin_.seen_std),
                ]
            )
            for bin_ in sweep.forecast.held_out
        ],
    )
