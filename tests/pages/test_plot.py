"""Figures in Python and in notebooks, and the numbers of figures as CSV."""

from __future__ import annotations

import ast
import base64
import csv
import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from msgspec.structs import replace

import rcdiag
from rcdiag.api.report import explanation
from rcdiag.errors import RcdiagError
from rcdiag.pages.compare.policies import triangle, waterfall
from rcdiag.pages.figures import FIGURES, applying
from rcdiag.pages.page import page
from rcdiag.pages.page_figures import draw
from rcdiag.pages.save import save_figures
from rcdiag.pages.score.sequences import paths, running
from rcdiag.pages.sweep.families import family_figures
from rcdiag.pages.tabs.diagnosis import BY_STEP, MORE_BY_STEP
from rcdiag.table.opening import open_table
from rcdiag.usecases.compare.run import compare
from rcdiag.usecases.score import score
from tests.pages.browser import visit
from tests.pages.makers import MAKERS, SAMPLES, replayed_with_model, swept
from tests.usecases.compare.tables import about, base_log_probs, shifted, write_policies


@pytest.fixture(scope="module")
def result():
    return MAKERS["score"]()


def test_steps_are_drawn_in_one_figure(result):
    figure = result.plot("steps")
    assert isinstance(figure, Figure)
    assert len(figure.axes) == len(BY_STEP) + len(MORE_BY_STEP)
    (curve, *_) = figure.axes[0].lines
    assert curve.get_xdata().tolist() == sorted(map(int, result.steps))
    values = [result.steps[step].mismatch["k3_kl"].value for step in sorted(result.steps, key=int)]
    assert curve.get_ydata().tolist() == pytest.approx(values)


def test_every_figure_has_its_name_and_its_width(result):
    figure = result.plot("concentration", width=3.3)
    assert figure.get_size_inches()[0] == pytest.approx(3.3)
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [3.3, 6.9])
def test_ladder_steps_decades_apart_are_distinguishable_from_0_on_paper(tmp_path, width):
    """Dots on a symmetric logarithmic scale, with the noise floor as a band."""
    base = base_log_probs(40)
    near, far = shifted(base, 1e-4, 1), shifted(base, 0.3, 2)
    policies = {"rollout": base, "near": near, "again": shifted(near, 1e-4, 3), "old": far}
    scored_by = [
        about("near", "vllm"),
        about("again", "vllm", repeat_of="near"),
        about("old", "hf"),
    ]
    path = write_policies(tmp_path / "a.parquet", policies, scored_by)
    compared = compare(open_table(path))
    figure = compared.plot("mismatch-by-rung", width=width)
    figure.canvas = FigureCanvasAgg(figure)
    figure.canvas.draw()
    (axes,) = figure.axes
    assert axes.get_xscale() == "symlog"
    frame = axes.get_window_extent()
    zero = axes.transData.transform((0.0, 0.0))[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    rungs = compared.ladder.rungs
    assert len(rungs) == 2
    assert len(dots) == 2 * len(rungs) + 1
    shown = {
        float(dot.get_xdata()[0]): axes.transData.transform(dot.get_xydata()[0])[0] for dot in dots
    }
    for rung in rungs:
        for value in (rung.contribution.value, rung.k2.value):
            assert abs(shown[value] - zero) > 0.05 * frame.width, rung
            assert frame.x0 < shown[value] < frame.x1
    (band,) = axes.patches
    floor = compared.noise_floor.k2
    assert band.get_width() == pytest.approx(floor.value if floor.high is None else floor.high)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][-1] == "noise floor"
    outside = legend.get_window_extent()
    assert outside.x0 >= 0
    assert outside.x1 <= figure.bbox.x1


def test_one_tiny_step_does_not_compress_the_scale_of_the_others(tmp_path):
    """A step of rounding is near 0 on a scale that separates the others."""
    base = base_log_probs(40)
    policies = {"rollout": base, "same": shifted(base, 1e-8, 1), "old": shifted(base, 0.3, 2)}
    compared = compare(open_table(write_policies(tmp_path / "a.parquet", policies)))
    figure = compared.plot("mismatch-by-rung")
    threshold = figure.axes[0].xaxis.get_transform().linthresh
    largest = max(rung.k2.value for rung in compared.ladder.rungs)
    assert min(rung.k2.value for rung in compared.ladder.rungs) < 1e-14
    assert 1e-10 < threshold < largest
    assert waterfall(compared).panels[0].x.threshold == threshold


@pytest.fixture(scope="module")
def ten_policies(tmp_path_factory):
    base = base_log_probs(24)
    names = ["rollout", *(f"a_policy_{number}" for number in range(8)), "old"]
    policies = {name: shifted(base, 2.0**-place, place) for place, name in enumerate(names)}
    path = write_policies(tmp_path_factory.mktemp("ten") / "a.parquet", policies)
    return compare(open_table(path))


def test_every_cell_of_ten_policies_has_its_number_in_a_column_of_a_paper(ten_policies):
    figure = ten_policies.plot("pair-distances", width=3.3)
    figure.canvas = FigureCanvasAgg(figure)
    figure.canvas.draw()
    (axes,) = figure.axes
    numbers = [text for text in axes.texts if text.get_fontweight() == "normal"]  # names are bold
    assert len(numbers) == 45
    cell = axes.get_window_extent().width / 10
    for text in numbers:
        assert text.get_window_extent().width <= cell
        assert text.get_fontsize() >= 4.5


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_every_cell_of_ten_policies_has_its_number_on_a_page(
    ten_policies, width, browser, tmp_path
):
    file = tmp_path / "page.html"
    file.write_text(page(ten_policies, explain=explanation))
    seen = visit(browser, file, viewport={"width": width, "height": 900})
    seen.go("ladder")
    for paper in (False, True):
        if paper:
            seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        cells = seen.page.evaluate(CELLS)
        assert len(cells) == 45
        shown = {tuple(row[:2]): row[2] for row in triangle(ten_policies).rows}
        for pair, lines, fits in cells:
            assert fits, pair
            digits, *power = "".join(lines).translate(PLAIN).split("·10")
            size = float(digits) * 10.0 ** int(power[0] if power else 0)
            assert size == pytest.approx(shown[tuple(pair.split("->"))], rel=0.06)
    seen.close()


# The cells of the triangle with their text lines, and whether these are inside the cell.
CELLS = """() => [...document.querySelectorAll("[data-figure] rect.cell")].map(cell => {
    const box = cell.getBoundingClientRect()
    const texts = [...cell.parentElement.querySelectorAll("text:not(.strong)")]
    const mine = texts.filter(text => {
        const { left, right, top, bottom } = text.getBoundingClientRect()
        const [x, y] = [(left + right) / 2, (top + bottom) / 2]
        return x > box.left && x < box.right && y > box.top && y < box.bottom
    })
    const fits = mine.every(text => text.getBoundingClientRect().width <= box.width + 2)
    return [cell.dataset.row, mine.map(text => text.textContent), fits && mine.length > 0]
})"""


PLAIN = str.maketrans("⁻−⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789")


def test_a_wrong_name_lists_the_right_ones(result):
    with pytest.raises(RcdiagError) as error:
        result.plot("stepps")
    assert "did you mean steps?" in error.value.hint
    assert "concentration" in error.value.hint


def test_a_notebook_has_a_drawn_cell_for_each_figure_and_loads_the_result(result, tmp_path):
    file = tmp_path / "results" / "score.json"
    file.parent.mkdir()
    result.save(file)
    path = tmp_path / "notes.ipynb"
    assert rcdiag.report(file, notebook=path) == [path]
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    for cell in code:
        ast.parse(cell["source"])
    assert "rcdiag.load_result('results/score.json')" in code[1]["source"]
    drawn = {cell["source"]: cell["outputs"] for cell in code if cell["outputs"]}
    by_step = {*BY_STEP, *MORE_BY_STEP}
    names = {spec.name for spec in applying(result)} - by_step
    assert set(drawn) == {f'score.plot("{name}")' for name in {*names, "steps"}}
    for outputs in drawn.values():
        assert base64.b64decode(outputs[0]["data"]["image/png"]).startswith(b"\x89PNG")
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_a_result_in_memory_is_written_beside_its_notebook(tmp_path):
    path = tmp_path / "notes.ipynb"
    written = rcdiag.report(MAKERS["diagnose"](), notebook=path)  # it has the fewest figures
    assert written == [tmp_path / "notes_diagnose.json", path]
    assert rcdiag.load_result(written[0]).kind == "diagnose"


def test_every_figure_has_its_numbers_as_csv(result, tmp_path):
    save_figures(result, tmp_path, only=["ratios-and-bounds", "worst-sequence-strips"])
    with (tmp_path / "ratios-and-bounds.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    tokens = [line for line in lines if line["panel"] == "log-ratio of tokens"]
    assert sum(int(line["count"]) for line in tokens) == result.num_tokens
    with (tmp_path / "worst-sequence-strips.csv").open() as stream:
        assert sum(line["log-ratio"] != "" for line in csv.DictReader(stream)) > 100


def test_names_of_rows_do_not_overlap_in_a_column_of_a_paper():
    figure = MAKERS["replay-model"]().plot("kl-after-step", width=3.3)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    boxes = [label.get_window_extent() for label in axes.get_yticklabels() if label.get_text()]
    boxes.sort(key=lambda box: box.y0)
    assert len(boxes) > 10
    for below, above in pairwise(boxes):
        assert above.y0 >= below.y1 - 0.25 * below.height


def test_panels_stand_two_in_a_row_in_a_column_of_a_paper():
    replayed = MAKERS["replay"]()
    for width, columns in ((3.3, 2), (6.9, 3)):
        figure = replayed.plot("loss-weights", width=width)
        shown = {axes.get_subplotspec().colspan.start for axes in figure.axes}
        assert len(shown) == columns
        figure.draw_without_rendering()
        for axes in figure.axes:
            assert axes.title.get_window_extent().x1 <= figure.bbox.x1 + 1


def overlapping(figure: Figure) -> list[str]:
    """Return overlapping labels of an axis, offset texts beside an axis, and cut labels."""
    FigureCanvasAgg(figure).draw()
    edge = figure.bbox.padded(1.0)
    said = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks = [one for one in axis.get_ticklabels() if one.get_visible() and one.get_text()]
            low, high = sorted(axis.get_view_interval())
            placed = zip(axis.get_ticklocs(), ticks, strict=False)
            shown = [one for at, one in placed if low <= at <= high and not one.get_rotation()]
            boxes = [(one.get_text(), one.get_window_extent()) for one in shown]
            for (first, box), (second, other) in pairwise(boxes):
                if box.overlaps(other):
                    said.append(f"{first} over {second}")
            said += filter(None, [axis.get_offset_text().get_text()])
            name = axis.get_label()
            box = name.get_window_extent()
            if name.get_text() and not (edge.contains(*box.min) and edge.contains(*box.max)):
                said.append(f"cut: {name.get_text()}")
    return said


@pytest.mark.parametrize("width", [3.3, 6.9])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("diagnose", "unexplained-by-experiment"),
        ("diagnose", "weights-by-row"),
        ("score", "worst-sequence-strips"),
        ("score", "steps"),
        ("compare", "mismatch-by-rung"),
    ],
)
def test_labels_on_paper_neither_overlap_nor_are_cut(kind, name, width):
    assert overlapping(MAKERS[kind]().plot(name, width=width)) == []


def test_a_factor_without_any_difference_draws_no_line():
    figure = MAKERS["replay"]().plot("ratio-factors")
    (axes,) = figure.axes
    curves = [line for line in axes.lines if len(line.get_xdata()) > 2]
    assert sum(bool(np.isfinite(line.get_ydata()).any()) for line in curves) == 1
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["sampler to trainer: rollout → old"]


def test_paths_of_sequences_that_are_cut_end_at_their_length_and_sum(tmp_path):
    table = pl.read_parquet(SAMPLES / "stale.parquet")
    lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
    lists = [name for name in lists if name != "prompt_ids"]
    longer = [pl.concat_list([pl.col(name)] * 4).alias(name) for name in lists]
    table.with_columns(longer).write_parquet(tmp_path / "long.parquet")
    whole = score(open_table(tmp_path / "long.parquet"))
    cut = [sequence for sequence in whole.worst_sequences if sequence.gaps]
    assert cut
    for sequence in cut:
        count, total = running(sequence)[-1]
        assert count == sequence.num_tokens > len(sequence.log_ratio)
        assert total == pytest.approx(sequence.log_ratio_sum, abs=1e-3)
    (worst, *_) = whole.worst_sequences
    rows = [row for row in paths(whole).rows if row[0] == f"row {worst.row}"]
    assert rows[-1][1] == worst.num_tokens
    assert rows[-1][2] == pytest.approx(worst.log_ratio_sum, abs=2e-3)


@pytest.mark.parametrize("width", [3.3, 6.9])
def test_lines_of_presets_and_of_families_are_named_outside_their_panels(width):
    drawn = draw(FIGURES["gradient-shares"], replayed_with_model(), width)
    (legend,) = drawn.legends
    assert "no correction" in legend.get_texts()[0].get_text()
    assert len(legend.get_texts()) == len(drawn.axes[0].lines)
    result = swept()
    family = next(one for one in family_figures(result) if one.name == "family-token_tis")
    figure = draw(family, result, width)
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        *("kept tokens", "ESS of sequences", "weight bias")
    ]
    assert not any(axes.get_legend() for axes in figure.axes)
    frame = legend.get_window_extent()
    assert not any(frame.overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_steps_decades_apart_have_a_logarithmic_axis(result):
    step, *others = result.steps
    far = {
        step: replace(
            result.steps[step],
            mismatch={
                name: replace(value, value=1e3 * value.value, low=None, high=None)
                if name == "k3_kl"
                else value
                for name, value in result.steps[step].mismatch.items()
            },
        )
    }
    collapsed = replace(result, steps={**far, **{each: result.steps[each] for each in others}})
    chart = FIGURES["mismatch-by-step"].chart
    assert chart(result).panels[0].y.scale == "linear"
    assert chart(collapsed).panels[0].y.scale == "log"
    assert draw(FIGURES["mismatch-by-step"], collapsed).axes[0].get_yscale() == "log"
    assert FIGURES["ess-by-step"].chart(collapsed).panels[0].y.scale == "linear"


def turned(figure: Figure) -> list[float]:
    return [label.get_rotation() for label in figure.axes[-1].get_xticklabels()]


def test_names_below_an_axis_are_rotated_only_if_they_do_not_fit(result):
    assert set(turned(result.plot("mismatch-by-training-step", width=6.9))) == {0.0}
    assert set(turned(result.plot("mismatch-by-reward", width=3.3))) == {0.0}
    assert set(turned(result.plot("mismatch-by-probability", width=3.3))) == {40.0}


@pytest.mark.parametrize("width", [3.3, 6.9])
@pytest.mark.parametrize("name", ["mismatch-by-training-step", "mismatch-by-probability"])
def test_no_name_below_an_axis_lies_over_the_next(result, name, width):
    figure = result.plot(name, width=width)
    FigureCanvasAgg(figure).draw()
    labels = [label for label in figure.axes[-1].get_xticklabels() if label.get_text()]
    if set(turned(figure)) == {0.0}:
        for one, two in pairwise(label.get_window_extent() for label in labels):
            assert one.x1 < two.x0


@pytest.mark.parametrize("width", [3.3, 6.9])
def test_numbers_of_coefficients_do_not_lie_over_each_other(width):
    figure = MAKERS["replay"]().plot("token-coefficients", width=width)
    FigureCanvasAgg(figure).draw()
    axis = figure.axes[0].yaxis
    labels = [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]
    shown = sorted(
        (label.get_window_extent() for label in labels if label.get_text()),
        key=lambda extent: extent.y0,
    )
    assert len(shown) >= 2
    for low, high in pairwise(shown):
        assert low.y1 <= high.y0 + 1.0
