"""Logs of all trainers are read; the format is detected from the content."""

from __future__ import annotations

import builtins
import gzip
import importlib.util
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcdiag.errors import RcdiagError
from rcdiag.logs import LOG_READERS, Log, LoggedNumber, LogReader, read_log
from rcdiag.logs.log import STEP_KEYS

KEY = "train/mis_k3_kl"


def values(log: Log, key: str = KEY) -> dict[int | None, float]:
    return {step: row[key].value for step, row in log.rows.items() if key in row}


def text(path: Path, content: str) -> Log:
    path.write_text(content)
    return read_log(path)


LINES = {
    "verl": '{"step": 3, "data": {"train/mis_k3_kl": 0.25, "actor/lr": 1e-06}}\n'
    '{"step": 4, "data": {"train/mis_k3_kl": 0.5}}\n',
    "flat": '{"train/step": 3, "train/mis_k3_kl": 0.25}\n\n'
    '{"train/step": 4, "train/mis_k3_kl": 0.5}',
    "nested": '{"train": {"mis_k3_kl": 0.25, "step": 3}}\n'
    '{"train": {"mis_k3_kl": 0.5, "step": 4}}\n',
    "wandb": '{"_step": 3, "_runtime": 1.5, "train/mis_k3_kl": 0.25, "note": "x"}\n'
    '{"_step": 4, "train/mis_k3_kl": 0.5, "flag": true, "gone": null}\n',
    "swift": '{"global_step/max_steps": "3/9", "train/mis_k3_kl": 0.25}\n'
    '{"global_step/max_steps": "4/9", "train/mis_k3_kl": 0.5}\n',
}


@pytest.mark.parametrize("writer", LINES)
def test_json_lines(writer, tmp_path):
    log = text(tmp_path / "log.txt", LINES[writer])
    assert log.format == "jsonl"
    assert values(log) == {3: 0.25, 4: 0.5}
    assert not any("step" in key for key in log.keys)


def test_the_trainers_own_step_takes_precedence_over_that_of_wandb(tmp_path):
    log = text(tmp_path / "a.jsonl", '{"_step": 90, "training/global_step": 3, "a/kl": 0.5}\n')
    assert values(log, "a/kl") == {3: 0.5}


@pytest.mark.parametrize("key", STEP_KEYS)
def test_a_step_is_read_under_every_key_of_one(key, tmp_path):
    log = text(tmp_path / "a.jsonl", f'{{"{key}": 30, "a/kl": 0.5}}\n{{"{key}": 40, "a/kl": 1}}\n')
    assert list(values(log, "a/kl")) == [30, 40]


def test_rows_of_one_step_are_merged(tmp_path):
    lines = '{"step": 1, "a": 0.5}\n{"step": 1, "b": 2.5}\n{"step": 2, "b": 3.5}\n{"run": 1.5}\n'
    log = text(tmp_path / "a.jsonl", lines)
    assert {s: dict(row) for s, row in log.rows.items()} == {
        1: {"a": LoggedNumber(0.5, "0.5"), "b": LoggedNumber(2.5, "2.5")},
        2: {"b": LoggedNumber(3.5, "3.5")},
    }
    assert log.keys == {"a": 1, "b": 2}


def logged(steps, value):
    return "".join(json.dumps({"step": step, "a": value}) + "\n" for step in steps)


def test_a_log_that_goes_back_to_its_first_step_holds_two_runs(tmp_path):
    log = text(tmp_path / "a.jsonl", logged(range(1, 9), 0.5) + logged(range(1, 5), 2.5))
    assert values(log, "a") == dict.fromkeys(range(1, 5), 2.5)
    assert [values(one, "a") for one in log.earlier] == [dict.fromkeys(range(1, 9), 0.5)]


def test_steps_of_a_resumed_run_that_are_logged_twice_are_counted(tmp_path):
    log = text(tmp_path / "a.jsonl", logged(range(1, 9), 0.5) + logged(range(6, 12), 2.5))
    assert (log.earlier, log.resumed, log.repeated) == ((), (6,), (6, 7, 8))
    # Each row twice, or rows in another order, are one run.
    twice = text(tmp_path / "b.jsonl", logged([1, 1, 2, 2, 3, 3, 4, 5, 6, 7], 0.5))
    assert (twice.earlier, twice.repeated) == ((), ())
    lost = text(tmp_path / "d.jsonl", logged(range(1, 6), 0.5) + logged(range(5, 9), 2.5))
    assert (lost.resumed, lost.repeated, values(lost, "a")[5]) == ((5,), (5,), 2.5)
    assert lost.notes[0].startswith("1 step (5) logged twice, since the run was resumed at step 5;")
    ranks = "".join(logged([step], 0.5) + logged([step], 2.5) for step in range(1, 9))
    assert text(tmp_path / "e.jsonl", ranks).repeated == ()
    other = text(tmp_path / "c.jsonl", logged([7, 2, 5, 1, 6, 8, 3, 4], 0.5))
    assert (other.earlier, list(values(other, "a"))) == ((), [1, 2, 3, 4, 5, 6, 7, 8])


def test_a_truncated_last_line_is_ignored_and_earlier_ones_are_counted(tmp_path):
    assert values(text(tmp_path / "a.jsonl", LINES["verl"] + '{"step": 5, "da')) == {
        3: 0.25,
        4: 0.5,
    }
    whole = logged(range(1, 20), 0.5).splitlines()
    cut = [line[:9] if number in (3, 7) else line for number, line in enumerate(whole, 1)]
    log = text(tmp_path / "b.jsonl", "\n".join(cut[:6] + whole[6:]))
    assert (log.unreadable, len(log.rows)) == ((3,), 18)
    assert log.notes == ["1 of 19 lines could not be read: line 3."]
    with pytest.raises(RcdiagError, match=r"2 of 19 lines cannot be read: lines 3, 7 \(not JSON"):
        text(tmp_path / "c.jsonl", "\n".join(cut))


def test_a_log_that_is_cut_at_its_beginning_keeps_its_other_lines(tmp_path):
    whole = logged(range(1, 20), 0.5)
    for number, cut in enumerate(('{"step": 0, "a', '": 0, "a": 0.5}', '{"step": 0, {"step": 1}')):
        log = text(tmp_path / f"{number}.jsonl", f"{cut}\n{whole}")
        assert (log.format, log.unreadable, len(log.rows)) == ("jsonl", (1,), 19)


def test_a_line_of_csv_with_too_many_values_is_left_out_and_counted(tmp_path):
    lines = [f"{step},0.5" for step in range(20)]
    lines[6] += ",7"
    log = text(tmp_path / "a.csv", "\n".join(["step,a", *lines]))
    assert (log.unreadable, len(log.rows)) == ((8,), 19)
    assert log.notes == ["1 of 20 lines could not be read: line 8."]
    short = text(tmp_path / "b.csv", "step,a,b\n1,0.5,0.25\n2,0.5\n")
    assert (short.short, list(values(short, "a"))) == ((3,), [1, 2])


def test_trainer_state_of_hf(tmp_path):
    state = {"epoch": 1.0, "log_history": [{"step": 3, KEY: 0.25}, {"step": 4, KEY: 0.5}]}
    for indent in (None, 2):
        log = text(tmp_path / "trainer_state.json", json.dumps(state, indent=indent))
        assert (log.format, values(log)) == ("json", {3: 0.25, 4: 0.5})


CSV = {
    "plain": f"step,{KEY}\n3,0.25\n4,0.5\n",
    "of hf": f"epoch\tglobal_step\t{KEY}\n0.1\t3\t0.25\n0.2\t4\t0.5\n",
    "chart of wandb": f'"Step","run-1 - {KEY}","run-1 - {KEY}__MIN","run-1 - {KEY}__MAX"\n'
    '"3","0.25","0.1","0.3"\n"4","0.5","0.4","0.6"\n',
    "with gaps": f"_step,other,{KEY}\n3,,0.25\n4,NaN,0.5\n5,1.5,\n",
}


@pytest.mark.parametrize("writer", CSV)
def test_csv(writer, tmp_path):
    log = text(tmp_path / "log", CSV[writer])
    assert (log.format, values(log)) == ("csv", {3: 0.25, 4: 0.5})


def test_a_chart_of_two_runs_is_read_as_two_runs(tmp_path):
    """The runs share the column of the step; the second one begins later."""
    log = text(
        tmp_path / "a.csv",
        '"Step","one - a/kl","one - a/kl__MIN","one - a/kl__MAX","x - two - a/kl","x - two - b"\n'
        '1,0.5,0.1,0.9,"",""\n2,0.25,0.1,0.9,0.6,7\n',
    )
    (one,) = log.earlier
    assert (one.run, values(one, "a/kl"), one.counted) == ("one", {1: 0.5, 2: 0.25}, False)
    assert (log.run, values(log, "a/kl"), values(log, "b")) == ("x - two", {2: 0.6}, {2: 7.0})
    assert log.lines == 2


def test_two_columns_for_a_key_are_two_runs_of_one_name(tmp_path):
    log = text(tmp_path / "a.csv", "Step,one - a/kl,one - a/kl\n1,0.5,0.6\n")
    (one,) = log.earlier
    assert (one.run, values(one, "a/kl")) == ("one", {1: 0.5})
    assert (log.run, values(log, "a/kl")) == ("one (2)", {1: 0.6})
    with pytest.raises(RcdiagError, match="two columns for `kl`, 2 and 3"):
        text(tmp_path / "b.csv", "Step,kl,kl\n1,0.5,0.6\n")


def test_parquet_of_wandb(tmp_path):
    path = tmp_path / "history"
    pq.write_table(pa.table({"_step": [3, 4, 5], KEY: [0.25, 0.5, None]}), path)
    log = read_log(path)
    assert (log.format, values(log)) == ("parquet", {3: 0.25, 4: 0.5})


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None,
    reason="the package tensorboard is not installed (pip install '.[tensorboard]')",
)
def test_tensorboard_events_of_a_file_and_of_a_run(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for step, number in ((3, 0.25), (4, 0.5)):
        summary = Summary(value=[Summary.Value(tag=KEY, simple_value=number)])
        writer.add_event(Event(step=step, wall_time=1.0, summary=summary))
    writer.close()
    (path,) = tmp_path.iterdir()
    for source in (path, path.rename(tmp_path / "renamed"), tmp_path):
        if source == tmp_path:
            (tmp_path / "renamed").rename(tmp_path / "events.out.tfevents.1.host")
        if source.exists():
            log = read_log(source)
            assert (log.format, values(log)) == ("tensorboard", {3: 0.25, 4: 0.5})


def test_tensorboard_events_without_the_package_name_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(b"\x18" + b"\0" * 20 + b"\x1a\rbrain.Event:2" + b"\0" * 4)
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("tensorboard"):
            raise ModuleNotFoundError("No module named 'tensorboard'", name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RcdiagError, match="events: tensorboard is not installed") as refused:
        read_log(path)
    assert "pip install '.[tensorboard]'" in refused.value.hint


def test_rows_without_any_step_are_counted(tmp_path):
    log = text(tmp_path / "a.jsonl", '{"a": 0.5}\n{"a": 1.5}\n')
    assert (log.counted, values(log, "a")) == (True, {1: 0.5, 2: 1.5})
    assert log.notes == ["The log has no step numbers; its rows are counted from 1."]
    one = text(tmp_path / "b.jsonl", '{"a": 0.5}\n')
    assert (one.counted, values(one, "a")) == (False, {None: 0.5})


@pytest.mark.parametrize(
    ("numbers", "rounding"),
    [
        ([0.1234, 0.5, 0.0012], 5e-5),  # four decimals
        ([0.12345678901234567, 0.5], 0.0),  # all digits: 0.5 is exact
        ([0.5], 0.0),  # one decimal is too few to infer rounding
    ],
)
def test_rounding_is_inferred_from_the_digits_of_the_whole_log(tmp_path, numbers, rounding):
    line = json.dumps({"step": 1, **{f"k{n}": number for n, number in enumerate(numbers)}})
    log = text(tmp_path / "a.jsonl", line + "\n")
    found = log.rounding("k0", log.rows[1]["k0"])
    assert found == pytest.approx(rounding, abs=1e-12)


def test_rounding_of_one_key_among_exact_ones(tmp_path):
    numbers = [(round(0.1234 + step / 1000, 4), 0.1234567890123 / 7 * step) for step in (1, 2, 3)]
    lines = [
        json.dumps({"step": n, "loss": loss, "kl": kl}) for n, (loss, kl) in enumerate(numbers)
    ]
    log = text(tmp_path / "a.jsonl", "\n".join(lines))
    assert log.rounding("loss", log.rows[1]["loss"]) == pytest.approx(5e-5)
    assert log.rounding("kl", log.rows[1]["kl"]) < 1e-12


def test_four_significant_digits(tmp_path):
    log = text(tmp_path / "a.jsonl", '{"step": 1, "a": 3.256e-05, "b": 1.234}\n')
    assert log.rounding("b", log.rows[1]["b"]) == pytest.approx(5e-4)
    assert log.rounding("a", log.rows[1]["a"]) == pytest.approx(5e-9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"nothing\nof a log\n", "not a log that rcdiag knows"),
        (b'{"step": 1, "note": "x"}\n{"step": 2}\n', "no numbers in it"),
        (b"{}\n{}\n", "no numbers in it"),
        (b'{"words": "only"}\n', "no numbers in it"),
        (b"step,kl\n1,2,3\n", r"1 of 1 line cannot be read: line 2 \(3 values under 2 names\)"),
        (b"[1, 2", "not JSON"),
    ],
)
def test_a_file_that_is_not_a_log_is_refused(tmp_path, content, message):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(RcdiagError, match=message) as refused:
        read_log(path)
    assert str(path) in refused.value.message
    assert refused.value.hint


VERL_CONSOLE = """2026-08-21 11:02:14,120 INFO worker.py:1917 -- Started a local Ray instance.
(TaskRunner pid=3112) Training Progress:   0%|          | 0/100 [00:00<?, ?it/s]
\x1b[36m(TaskRunner pid=3112)\x1b[0m step:1 - actor/pg_loss:0.25 - a/kl:np.float64(0.0021)
(TaskRunner pid=3112) step:2 - actor/pg_loss:-1.5e-05 - a/kl:nan - note:none
"""


@pytest.mark.parametrize("content", [LINES["verl"], VERL_CONSOLE])
def test_a_compressed_log(tmp_path, content):
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(content.encode()))
    (plain := tmp_path / "log").write_text(content)
    assert repr(read_log(path).rows) == repr(read_log(plain).rows)
    path.write_bytes(gzip.compress(content.encode() * 99)[:-20])
    with pytest.raises(RcdiagError, match=r"log.gz: the compressed file is truncated or damaged"):
        read_log(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(RcdiagError, match="cannot be read"):
        read_log(tmp_path / "nothing.jsonl")


def test_a_format_of_a_plugin(tmp_path):
    path = tmp_path / "log"
    path.write_text("MYLOG 3 0.25\n")
    reader = LogReader(
        name="mylog",
        says="lines of MYLOG",
        detect=lambda file: file.head.startswith(b"MYLOG"),
        read=lambda file: iter([{"step": 3, KEY: file.text().split()[2]}]),
    )
    with LOG_READERS.with_added(reader):
        assert values(read_log(path)) == {3: 0.25}
    with pytest.raises(RcdiagError, match="not a log"):
        read_log(path)


SLIME_CONSOLE = """[2026-08-21 11:02:14] timer.py:24 - Timer train start
[2026-08-21 11:02:15] train_metric_utils.py:135 - rollout 3: {'rollout/reward': 0.5, 'a': 1}
[2026-08-21 11:02:16] model.py:854 - step 3: {'train/mis_kl': 0.0021, 'train/step': 3, 'lr': 1e-06}
[2026-08-21 11:02:16] train_metric_utils.py:401 - perf 3: {'perf/train_time': np.float32(7.5)}
"""


def test_lines_that_verl_prints(tmp_path: Path) -> None:
    log = text(tmp_path / "train.log", VERL_CONSOLE)
    assert log.format == "console"
    assert values(log, "actor/pg_loss") == {1: 0.25, 2: -1.5e-05}
    assert values(log, "a/kl")[1] == 0.0021
    assert math.isnan(values(log, "a/kl")[2])
    assert "note" not in log.keys


def test_dicts_that_slime_prints(tmp_path: Path) -> None:
    log = text(tmp_path / "train.log", SLIME_CONSOLE)
    assert log.format == "console"
    assert set(log.rows) == {3}
    row = {key: number.value for key, number in log.rows[3].items()}
    assert row == {
        "rollout/reward": 0.5,
        "a": 1.0,
        "train/mis_kl": 0.0021,
        "lr": 1e-06,
        "perf/train_time": 7.5,
    }


@pytest.mark.parametrize("counter", ["rollout/step", "step"])
@pytest.mark.parametrize(("updates", "done"), [(1, 10), (4, 40), (4, 38)])
def test_updates_of_slime_stand_at_their_rollout(
    tmp_path: Path, counter: str, updates: int, done: int
) -> None:
    rows: list[dict[str, float]] = []
    for rollout in range(10):
        rows.append({counter: rollout, "rollout/reward": rollout})
        of_it = range(rollout * updates, (rollout + 1) * updates)
        rows += [{"train/step": step, "train/loss": step} for step in of_it if step < done]
    log = text(tmp_path / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert values(log, "rollout/reward") == {rollout: rollout for rollout in range(10)}
    last = {rollout: min((rollout + 1) * updates, done) - 1 for rollout in range(10)}
    assert values(log, "train/loss") == last
    assert log.notes == (
        [
            "The log counts 4 updates (`train/step`) of each rollout (`rollout/step`): steps are "
            "rollouts, with the numbers of their last update."
        ]
        if updates > 1
        else []
    )


PRIME_CONSOLE = """12:01:00 SUCCESS Starting training loop
12:01:05   DEBUG Micro Step 0/8 | Loss 9.0000 | Entropy 9.0000 | Mismatch KL 9.0000
\x1b[32m12:01:07 SUCCESS\x1b[0m [trainer] Step 0 |   5.21s | Loss -0.0012 | Entropy 0.2819 \
| Mismatch KL 0.0007 | Grad. Norm 0.0352 | LR 1.00e-06 | Throughput 1234 tokens/s | MFU 5.1%
12:01:08 SUCCESS [orchestrator] Step 0 |   9.10s | Reward 0.7008 | Trainable 12/16 (75.0%)
12:01:09 SUCCESS Step 1 | Time: 5.21s | Loss: nan | Entropy: 0.2977 | Mismatch KL: 0.0006 \
| Grad. Norm: 0.0244 | LR: 1.00e-06 | Throughput: 1234 tokens/s
"""


def test_lines_that_prime_rl_prints_before_and_since_june_2026(tmp_path: Path) -> None:
    log = text(tmp_path / "trainer.log", PRIME_CONSOLE)
    assert (log.format, list(log.rows)) == ("console", [0, 1])
    assert values(log, "mismatch_kl/all/mean") == {0: 0.0007, 1: 0.0006}
    assert values(log, "optim/grad_norm") == {0: 0.0352, 1: 0.0244}
    assert values(log, "reward/all/mean") == {0: 0.7008}
    assert values(log, "Throughput") == {0: 1234.0, 1: 1234.0}
    assert log.rows[0]["loss/mean"].value == -0.0012
    assert math.isnan(log.rows[1]["loss/mean"].value)
    assert "Trainable" not in log.keys


NEMO_STEP = """
========================= Step {step}/2 =========================
▶ Training policy...

📊 Training Results:
  • Loss: 0.0100
  • Generation KL Error: {kl:.4f}
  • Avg Reward: 0.3000
  • Buffer Size: 8
  • Avg Trajectory Age: 1.50 steps

⏱️  Timing:
  • Total step time: 12.00s
  • policy_training: 3.20s (26.7%)
"""
NEMO_EPOCH = "\n========================= Epoch {epoch}/3 =========================\n"


def test_the_blocks_that_nemo_rl_prints_count_on_over_epochs(tmp_path: Path) -> None:
    content = (
        "  • Average response length: 512.00 tokens\n"  # of a validation before the first step
    )
    for epoch in (1, 2):
        content += NEMO_EPOCH.format(epoch=epoch)
        content += "".join(NEMO_STEP.format(step=s, kl=1e-3 * (epoch + s)) for s in (1, 2))
    prefix = "(pid=7, ip=10.0.0.1) 2026-08-21 11:02:14 "  # of Ray, and of a launcher
    for before in ("", prefix):
        lines = "".join(before + line for line in content.splitlines(keepends=True))
        log = text(tmp_path / "driver.log", lines)
        assert list(values(log, "train/gen_kl_error")) == [1, 2, 3, 4]
    log = text(tmp_path / "driver.log", content)
    assert (log.format, log.earlier) == ("console", ())
    assert values(log, "train/gen_kl_error") == {1: 0.002, 2: 0.003, 3: 0.003, 4: 0.004}
    assert values(log, "train/avg_trajectory_age") == dict.fromkeys((1, 2, 3, 4), 1.5)
    assert not {"Average response length", "policy_training", "Total step time"} & set(log.keys)


def test_dicts_that_hf_trainers_print_are_counted(tmp_path: Path) -> None:
    content = "loading weights, please wait\n{'loss': 0.25, 'epoch': 0.5}\n{'loss': 0.5}\n"
    log = text(tmp_path / "out.txt", content)
    assert (log.format, log.counted, values(log, "loss")) == ("console", True, {1: 0.25, 2: 0.5})


def test_dicts_of_hf_trainers_have_the_step_of_the_progress_bar_above(tmp_path: Path) -> None:
    content = "".join(
        f"\r {step}%|#    | {step}/100 [00:01<00:09,  1.1it/s]\r          \r{{'loss': {step}.5}}\n"
        for step in (10, 20, 30)
    )
    log = text(tmp_path / "out.txt", "  0%|     | 0/100 [00:00<?, ?it/s]" + content)
    assert (log.counted, values(log, "loss")) == (False, {10: 10.5, 20: 20.5, 30: 30.5})


@pytest.mark.parametrize("width", [80, 57, 41])
@pytest.mark.parametrize("before", ["", "rollout 7: "])
def test_dicts_that_a_terminal_wrapped_are_read_whole(
    tmp_path: Path, width: int, before: str
) -> None:
    keys = ("loss", "completions/max_terminated_length", "sampling/sampling_logp_difference/mean")
    row = {**dict.fromkeys(keys, 0.125), "entropy": 2.142180204391479, "epoch": 10.0}
    line = f"{before}{row}"
    wrapped = [line[at : at + width] for at in range(0, len(line), width)]
    assert len(wrapped) > 1
    content = "\n".join([*wrapped, "saving a checkpoint", *wrapped, "{'train_runtime': 26.5}", ""])
    log = text(tmp_path / "out.txt", content.replace("rollout 7", "rollout 8", 1))
    shown = {key: number.value for key, number in next(iter(log.rows.values())).items()}
    assert (shown, log.short, len(values(log, "epoch"))) == (row, (), 2)


def test_a_wrapped_dict_that_is_cut_does_not_take_the_next_line(tmp_path: Path) -> None:
    content = "{'loss': 0.5, 'a/kl'\n: 0.25, 'a/ent': 0.12\n{'loss': 0.25, 'a/ent': 1.5}\n"
    log = text(tmp_path / "cut.txt", content)
    assert (log.short, values(log, "a/kl"), values(log, "a/ent")) == ((1,), {1: 0.25}, {2: 1.5})


def verl_line(step: int) -> str:
    return f"step:{step} - a/loss:{step / 8} - a/kl:{0.001 / step:.9f} - a/ent:{step / 7}"


def test_lines_that_a_terminal_cut_lose_the_number_at_the_end_and_are_counted(
    tmp_path: Path,
) -> None:
    whole = [verl_line(step) for step in range(1, 10)]
    log = text(tmp_path / "whole.txt", "\n".join([*whole, whole[8] + " - val/acc:0.5"]))
    assert (log.short, values(log, "a/ent")[9]) == ((), 9 / 7)
    width = len("step:9 - a/loss:1.125 - a/kl:0.0001")
    lines = [*whole[:6], *(line[:width] for line in whole[6:]), whole[0].replace(":1 ", ":10 ")]
    log = text(tmp_path / "cut.txt", "\n".join(lines))
    assert (log.short, values(log, "a/loss")[9]) == ((7, 8, 9), 1.125)
    assert list(values(log, "a/kl")) == [1, 2, 3, 4, 5, 6, 10]
    assert log.notes == ["3 of 10 lines lack their last keys, as if cut: lines 7, 8, 9."]
    # If the terminal cut all lines, those of one width have different keys.
    width = len("step:1 - a/loss:0.125 - a/kl:0.001000000 - a/ent:")
    log = text(tmp_path / "all.txt", "\n".join(line[:width] for line in whole))
    assert log.short == tuple(range(1, 10))


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("step:2 - a:0.5 - b:0.0...", {"a": 0.5}),
        ("step:2 - a:0.5 - ... - z:3", {"a": 0.5, "z": 3.0}),
        ("step 2: {'a': 0.5, 'b': 0.0", {"a": 0.5}),
        ("step 2: {'a': 0.5, 'b': 0.25, ...}", {"a": 0.5, "b": 0.25}),
        ("Step 2 | a 0.5 | b 0.0…", {"a": 0.5}),
    ],
)
def test_a_line_that_was_shortened_keeps_its_whole_numbers(
    tmp_path: Path, line: str, row: dict[str, float]
) -> None:
    log = text(tmp_path / "train.log", line + "\n")
    assert {key: number.value for key, number in log.rows[2].items()} == row
    assert log.short == (1,)


STEP_NAMED = {
    "jsonl": '{"it": 5, "a": 0.5}\n{"it": 6, "a": 1.5}\n',
    "csv": "_step,it,a\n0,5,0.5\n1,6,1.5\n",
    "json": '[\n{"it": 5, "a": 0.5},\n{"it": 6, "a": 1.5}]',
    "verl": "step:0 - it:5 - a:0.5\nstep:1 - it:6 - a:1.5\n",
    "slime": "rollout 0: {'it': 5}\nstep 0: {'a': 0.5}\nstep 1: {'a': 1.5, 'it': 6}\n",
    "tensorboard": '{"step": 0, "it": 5}\n{"step": 0, "a": 0.5}\n'
    '{"step": 1, "it": 6}\n{"step": 1, "a": 1.5}\n',
}


@pytest.mark.parametrize("kind", STEP_NAMED)
def test_the_key_of_the_step_can_be_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    path.write_text(STEP_NAMED[kind])
    log = read_log(path, "it")
    assert (values(log, "a"), log.counted, "it" in log.keys) == ({5: 0.5, 6: 1.5}, False, False)
    path.write_text('{"it": 5, "a": 0.5}\n{"it": 6, "a": 1.5}\n')
    with pytest.raises(RcdiagError, match="no row has a whole number under 'other'"):
        read_log(path, "other")


def test_counters_beyond_the_digits_of_a_float_are_no_steps(tmp_path: Path) -> None:
    log = text(tmp_path / "a.jsonl", "".join(logged([1, 2, 1e30], 0.5)))
    assert list(values(log, "a")) == [1, 2]


def test_output_without_a_printed_step_is_not_a_log(tmp_path: Path) -> None:
    with pytest.raises(RcdiagError, match="not a log that rcdiag knows"):
        text(tmp_path / "train.log", "step 3 of 7 began\nstep:4\nall is done\n")


def test_a_csv_line_with_fewer_values_has_none_in_the_last_columns(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("Step,a - k3_kl,b - k3_kl\n1,0.5,0.25\n\n2,0.75\n3\n")
    log = read_log(path)
    assert [float(row["k3_kl"].value) for row in log.rows.values()] == [0.25]
    (other,) = log.earlier
    assert [float(row["k3_kl"].value) for row in other.rows.values()] == [0.5, 0.75]
