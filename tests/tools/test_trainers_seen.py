"""New, removed and changed settings and keys of a trainer are listed, and nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from rcdiag.trainers import find_trainer
from tools.trainers_seen import compared, main, read_source

# Our own abridged version of prime-rl's losses, as of its September generation.
CONFIG = """
class IPOLossConfig(BaseConfig):
    type: Literal["ipo"] = "ipo"
    eps: float = Field(0.3, ge=0)
    adv_tau: float = Field(1.0)
    kl_tau: float = Field(default=0.0)


class IcePopLossConfig(BaseConfig):
    type: Literal["icepop"] = "icepop"
    ratio_low: float = 0.2
    ratio_high: Annotated[float, Field(gt=0)] = 5.0
    adv_tau: float = 1.0


class CustomLossConfig(BaseConfig):
    type: Literal["custom"] = "custom"
    import_path: str


class OptimizerConfig(BaseConfig):
    type: Literal["adamw"] = "adamw"
    eps: float = 1e-8
"""
LOSS = """
def loss(inputs, step):
    out[f"mismatch_kl/{name}"] = kl
    metrics = {"masked_mismatch_kl": 0, "unmasked_mismatch_kl": 0, "is_masked": 0}
    stats["kl_ent_ratio/mean"] = stats["mismatch_kl/all/mean"] / entropy
"""


def checkout(folder: Path, config: str = CONFIG, loss: str = LOSS) -> Path:
    (folder / "src" / "tests").mkdir(parents=True)
    (folder / "src" / "config.py").write_text(config)
    (folder / "src" / "loss.py").write_text(loss)
    (folder / "src" / "template.py").write_text("class {{ name }}:\n")
    # Tests of a trainer are ignored.
    (folder / "src" / "tests" / "test_config.py").write_text("ratio_low: float = 0.9\n")
    return folder


def lines(path: Path) -> list[str]:
    return compared(find_trainer("prime-rl"), read_source(path))


def test_known_settings_and_keys_are_not_listed(tmp_path: Path) -> None:
    assert lines(checkout(tmp_path)) == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("Field(0.3, ge=0)", "Field(0.2, ge=0)", "default  eps: 0.3 in rcdiag, 0.2 (src/config.py"),
        ("default=0.0", "default=1e-3", "default  kl_tau: 0.0 in rcdiag, 0.001"),
        ("    ratio_low: float = 0.2\n", "", "gone     setting ratio_low"),
        ('"icepop"] = "icepop"', '"kpop"] = "kpop"', "new      value type = kpop"),
        ('"icepop"] = "icepop"', '"kpop"] = "kpop"', "gone     value type = icepop"),
        (
            "    adv_tau: float = 1.0\n",
            "    adv_tau: float = 1.0\n    max_importance_ratio: float = 1e4\n",
            "new      setting max_importance_ratio = 10000.0 (src/config.py, IcePopLossConfig",
        ),
    ],
)
def test_a_change_of_settings_is_listed(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert old in CONFIG
    found = lines(checkout(tmp_path, CONFIG.replace(old, new, 1)))
    assert [one for one in found if one.startswith(line)], found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"is_masked": 0', '"is_masked": 0, "ratio_capped_frac": 0', "new?     key ratio_capped"),
        ('"is_masked": 0', "", "gone     key is_masked/mean"),
    ],
)
def test_a_change_of_keys_is_listed(tmp_path: Path, old: str, new: str, expected: str) -> None:
    found = lines(checkout(tmp_path, loss=LOSS.replace(old, new)))
    assert [one for one in found if one.startswith(expected)], found
    assert all("key" in one for one in found)


def test_options_of_argparse_and_a_wheel_are_read(tmp_path: Path) -> None:
    arguments = """
parser.add_argument("--rho_clamp_upper_bound", type=float, default=3.0)
parser.add_argument("--rho-mask-upper-bound", default=0.0)
parser.add_argument("--use_rho_correction", action="store_true")
"""
    wheel = tmp_path / "trainer.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("open_instruct/arguments.py", arguments)
    found = compared(find_trainer("open-instruct"), read_source(wheel))
    place = "(open_instruct/arguments.py, options, line 2)"
    assert f"default  rho_clamp_upper_bound: 2.0 in rcdiag, 3.0 {place}" in found
    assert not [one for one in found if "rho_mask_upper_bound" in one]
    assert "gone     setting rho_mask_lower_bound" in found


def test_yaml_is_searched_for_settings_without_a_class(tmp_path: Path) -> None:
    (tmp_path / "mis.yaml").write_text("tis_mode: clip\nrs_veto_threshold: 1.0e-4\n")
    found = compared(find_trainer("slime"), read_source(tmp_path))
    assert "default  tis_mode: 'truncate' in rcdiag, 'clip' (mis.yaml, line 0)" in found
    assert not [one for one in found if "rs_veto_threshold" in one]


def test_the_command_states_the_date_up_to_which_the_trainer_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkout(tmp_path)
    assert main([str(folder), "--trainer", "prime-rl"]) == 0
    known = "prime-rl-20260918 (pull request #3586 of 2026-09-18)"
    assert capsys.readouterr().out == f"{known} against {folder}\n"
    with pytest.raises(SystemExit):
        main([str(tmp_path / "nowhere"), "--trainer", "prime-rl"])
