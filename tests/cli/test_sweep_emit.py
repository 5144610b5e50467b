"""`rcdiag sweep --emit` writes a configuration that `rcdiag score` reads back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

import rcdiag as api
from rcdiag.results import CorrectionResult, MetricValue, SweepResult
from rcdiag.results.sweep import Candidate, Recommendation
from rcdiag.table.opening import open_table
from rcdiag.trainers import TRAINERS, find_trainer
from rcdiag.trainers.plan import Plan
from rcdiag.trainers.settings_text import Inexpressible
from rcdiag.usecases.score import score
from rcdiag.usecases.sweep.candidates import CANDIDATES
from rcdiag.usecases.sweep.configuration import configuration
from rcdiag.usecases.sweep.recommend import SweepEvidence, recommend
from tests.cli.conftest import dump_with_shift
from tests.cli.sweep_tables import FEW, sampled_table

CASES = [
    ("verl", "none"),
    ("verl", "token_tis_2"),
    ("verl", "token_icepop_0.5_5"),
    ("verl", "token_mis_0.5_2"),
    ("verl", "seq_mis_0.5_2"),
    ("verl", "geo_rs_0.99_1.01"),
    ("verl", "k3_rs_0.01"),
    ("verl", "geo_rs_0.99_1.01_token_tis_2"),
    ("verl-0.7.0", "none"),
    ("verl-0.7.0", "seq_tis_5"),
    ("verl-0.7.0", "token_mis_0.5_2"),
    ("verl-0.7.0", "geo_rs_0.99_1.01_seq_tis_2"),
    ("slime", "none"),
    ("slime", "token_tis_2"),
    ("slime", "seq_mis_0.5_2"),
    ("slime", "geo_rs_0.99_1.01_seq_tis_2"),
]
every_case = pytest.mark.parametrize(("trainer", "candidate"), CASES)
NUMBERS = ("kept_tokens", "kept_sequences", "weight_sum")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return sampled_table(tmp_path_factory.mktemp("tables") / "table.parquet")


@pytest.fixture(scope="module")
def swept(table) -> SweepResult:
    return api.sweep(table, thresholds=FEW[1])


def written(rcdiag, table: Path, trainer: str, *options: str) -> Path:
    """Write what the command prints to a file beside the table."""
    ran = rcdiag("sweep", table, *FEW, "--emit", trainer, *options)
    assert ran.code == 0, ran.err
    return kept(ran.out, table)


def kept(text: str, table: Path) -> Path:
    """Write a configuration to a file beside the table."""
    path = table.with_suffix(".yaml")
    path.write_text(text)
    return path


def read_back(rcdiag, table: Path, config: Path, *options: str) -> dict:
    """Score with a trainer's configuration; returns the numbers of its only correction."""
    ran = rcdiag("score", table, "--json", "--trainer-config", config, *options)
    assert ran.code == 0, ran.err
    (result,) = ran.document["corrections"].values()
    return {name: result[name] for name in NUMBERS}


@pytest.fixture(scope="module")
def scored(table) -> dict[str, CorrectionResult]:
    """Score with the corrections of the candidates; returns their numbers by candidate."""
    any_trainer = replace(
        find_trainer("verl"),
        metrics=lambda batch, correction: {},
    )
    names = sorted({candidate for _, candidate in CASES})
    corrections = {name: CANDIDATES[name].correction for name in names}
    plan = Plan(any_trainer, dict.fromkeys(names, any_trainer.settings), corrections)
    return score(open_table(table), plan=plan).corrections


@every_case
def test_reading_back_gives_the_numbers_of_the_correction_itself_and_of_its_row(
    rcdiag, table, swept, scored, trainer, candidate
):
    """tests/api/test_same_as_commands.py checks that the command prints what `emit` returns."""
    itself = scored[candidate]
    expected = {name: getattr(itself, name) for name in NUMBERS}
    if itself.weight_sum is not None:
        expected["weight_sum"] = pytest.approx(itself.weight_sum, rel=1e-12)
    config = kept(api.emit(swept, trainer, candidate), table)
    result = read_back(rcdiag, table, config)
    assert result == expected
    if candidate != "none":
        assert_numbers_of_the_row(result, swept, candidate)


def assert_numbers_of_the_row(result: dict, swept: SweepResult, candidate: str) -> None:
    named = CANDIDATES[candidate]
    rows = swept.families[named.family].rows
    (row,) = [item for item in rows if item.bounds == named.bounds]
    assert result["kept_tokens"] == row.kept_tokens
    assert result["kept_sequences"] == row.kept_sequences
    if row.kept_tokens == swept.num_tokens and result["weight_sum"] is not None:
        mean = result["weight_sum"] / swept.num_tokens
        assert mean == pytest.approx(row.mean_weight.value, rel=1e-9)


@pytest.mark.parametrize(
    ("trainer", "candidate"),
    [("verl", "token_mis_0.5_2"), ("verl-0.7.0", "seq_tis_5"), ("slime", "seq_mis_0.5_2")],
)
def test_reading_back_is_the_same_with_a_named_trainer(rcdiag, table, swept, trainer, candidate):
    config = kept(api.emit(swept, trainer, candidate), table)
    named = read_back(rcdiag, table, config, "--trainer", trainer)
    assert named == read_back(rcdiag, table, config)


@pytest.mark.parametrize("trainer", ["verl", "verl-0.7.0", "slime"])
def test_stdout_has_only_the_configuration_with_its_reasons(rcdiag, table, swept, trainer):
    ran = rcdiag("sweep", table, *FEW, "--emit", trainer)
    advice = swept.recommendation
    assert ran.out.startswith(f"# {advice.choice or 'none'}: {advice.answer}\n")
    for reason in swept.recommendation.reasons:
        assert f"\n# {reason}\n" in ran.out
    lines = [line for line in ran.out.splitlines() if not line.lstrip().startswith("#")]
    assert isinstance(yaml.safe_load(ran.out), dict)
    assert all(":" in line for line in lines)
    assert len(ran.err.strip().splitlines()) <= 2


def test_the_recommended_configuration_is_read_back_as_its_candidate(rcdiag, table, swept):
    choice = swept.recommendation.choice
    asked = read_back(rcdiag, table, written(rcdiag, table, "verl", "--candidate", choice))
    assert read_back(rcdiag, table, written(rcdiag, table, "verl")) == asked


def test_another_candidate_is_not_called_the_recommended_one(rcdiag, table, swept):
    ran = rcdiag("sweep", table, *FEW, "--emit", "verl", "--candidate", "token_tis_5")
    first, choice = ran.out.splitlines()[0], swept.recommendation.choice
    assert first == f"# token_tis_5, as requested; recommended: {choice}"


@pytest.fixture(scope="module")
def nothing_to_correct(tmp_path_factory) -> tuple[Path, SweepResult]:
    table = dump_with_shift(tmp_path_factory.mktemp("nothing") / "a.parquet", 0.0)
    return table, api.sweep(table, thresholds=FEW[1])


@pytest.mark.parametrize("trainer", ["verl", "verl-0.7.0", "slime"])
def test_no_correction_is_written_as_a_configuration(rcdiag, nothing_to_correct, trainer):
    table, swept = nothing_to_correct
    config = kept(api.emit(swept, trainer, "none"), table)
    assert config.read_text().startswith("# none, as requested; recommended: cannot-distinguish\n")
    result = read_back(rcdiag, table, config)
    assert result == {"kept_tokens": 6, "kept_sequences": 3, "weight_sum": None}


def test_no_configuration_is_written_where_the_cause_must_be_fixed(rcdiag, tmp_path):
    table = dump_with_shift(tmp_path / "a.parquet", float("nan"))
    result = tmp_path / "r.json"
    ran = rcdiag("sweep", table, *FEW, "--emit", "verl", "--result", result)
    ran.refuses("error: no configuration is written: ", "--candidate NAME")
    assert result.exists()
    named = rcdiag("sweep", table, *FEW, "--emit", "verl", "--candidate", "seq_tis_2", "-q")
    assert named.code == 0
    assert named.out.startswith("# seq_tis_2, as requested; recommended: fix-the-cause\n")


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_quiet_keeps_the_configuration_and_nothing_else(rcdiag, table, quiet):
    ran = rcdiag("sweep", table, *FEW, "--emit", "verl", *quiet)
    assert "rollout_correction:" in ran.out
    assert bool(ran.err) == (not quiet)


def test_files_are_written_beside_the_configuration(rcdiag, table, tmp_path):
    ran = rcdiag("sweep", table, *FEW, "--emit", "verl", "--result", tmp_path / "r.json")
    assert (tmp_path / "r.json").exists()
    assert "Wrote" in ran.err
    assert "Wrote" not in ran.out


def advice(choice, *ranked) -> Recommendation:
    """A recommendation with candidates by rank, and whether each is as good as the first."""
    return Recommendation(
        answer="take",
        choice=choice,
        indistinguishable=[name for name, close in ranked if close],
        reasons=["made up"],
        method="",
        candidates=[
            Candidate(
                name=name,
                family=CANDIDATES[name].family,
                bounds=dict(CANDIDATES[name].bounds),
                efficiency=MetricValue(value=0.5),
                refused=[],
                rank=rank,
                within_error_of_best=close,
            )
            for rank, (name, close) in enumerate(ranked, 1)
        ],
    )


def test_settings_that_a_trainer_lacks_appear_only_in_comments():
    ranked = [("token_icepop_0.5_5", True), ("seq_tis_2", True), ("token_tis_5", False)]
    text = configuration(advice("token_icepop_0.5_5", *ranked), "verl-0.7.1")
    assert yaml.safe_load(text) is None
    assert text.startswith("# token_icepop_0.5_5: take\n# made up\n")
    assert "# nothing to paste: verl-0.7.1 has no weights that are zeroed" in text
    assert "it can be written for verl-0.9" in text
    assert "# verl-0.7.1 has seq_tis_2: within one standard error of the best, and 5%\n" in text
    assert "# to write it: --emit verl-0.7.1 --candidate seq_tis_2\n" in text


def test_the_best_candidate_of_a_trainer_may_be_worse_than_the_best():
    ranked = [("token_icepop_0.5_5", True), ("seq_tis_2", False), ("token_tis_5", False)]
    text = configuration(advice("token_icepop_0.5_5", *ranked), "verl-0.7.1")
    assert "# the best that verl-0.7.1 has is seq_tis_2, further behind" in text


def test_a_trainer_may_support_no_candidate():
    text = configuration(advice("token_icepop_0.5_5", ("token_icepop_0.5_5", True)), "verl-0.7.1")
    assert "# verl-0.7.1 has none of the candidates that were not refused" in text


def test_the_other_outputs_are_written_where_a_trainer_cannot_express_it(
    rcdiag, table, tmp_path, monkeypatch
):
    """The command must not exit with 2 after writing the result without printing it."""
    choice = "seq_tis_10"

    def corrected(evidence: SweepEvidence) -> Recommendation:
        return replace(recommend(evidence), answer="take", choice=choice)

    monkeypatch.setattr("rcdiag.usecases.sweep.run.recommend", corrected)
    lame = replace(TRAINERS["slime"].config, write=refuses(CANDIDATES[choice].correction))
    trainer = replace(TRAINERS["slime"], name="lame", family="lame", config=lame)
    with TRAINERS.with_added(trainer):
        ran = rcdiag("sweep", table, *FEW, "--emit", "lame", "--result", tmp_path / "r.json")
    assert ran.code == 0, ran.err
    assert (tmp_path / "r.json").exists()
    assert yaml.safe_load(ran.out) is None
    assert f"# {choice}: take\n" in ran.out
    assert "# nothing to paste: lame has no such thing" in ran.out


def refuses(correction):
    """Return slime's writer without one of its corrections."""
    write = TRAINERS["slime"].config.write

    def written(wanted):
        if wanted == correction:
            raise Inexpressible("such thing")
        return write(wanted)

    return written


@pytest.mark.parametrize(
    ("trainer", "output"),
    [("acme", "no such trainer"), ("verl-0.6.0", "does not write settings of verl-0.6.0")],
)
def test_a_trainer_without_a_writer_is_refused_before_the_sweep(
    rcdiag, table, tmp_path, trainer, output
):
    ran = rcdiag("sweep", table, *FEW, "--emit", trainer, "--result", tmp_path / "r.json")
    ran.refuses(output)
    assert not (tmp_path / "r.json").exists()


def test_where_nothing_is_recommended_the_configuration_says_so():
    without = replace(advice("none", ("none", True)), answer="cannot-distinguish", choice=None)
    text = configuration(without, "verl-0.9")
    assert text.startswith("# no candidate is recommended, as this table cannot tell them apart")
    assert "below is no correction" in text
    off = {"rollout_is": None, "rollout_rs": None, "bypass_mode": False}
    assert yaml.safe_load(text)["algorithm"]["rollout_correction"] == off
