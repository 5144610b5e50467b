"""verl's batches in every file form, cut by attention mask, compared cell by cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rcdiag.errors import RcdiagError
from rcdiag.table.sources import find_files
from tests.table.readers.pickled import (
    Built,
    Named,
    non_tensor,
    pickled,
    stacked,
    tensordict,
    torch_bytes,
    write,
)
from tests.table.readers.rollouts import (
    COLUMNS,
    PAD,
    Rollouts,
    assert_rows,
    only,
    read,
    rollouts,
)
from tests.table.readers.verl_batches import (
    FORMS,
    data_proto,
    queue_batch,
    tensors_of,
    values_of,
    write_batch,
)

TOKENS = ("prompt_ids", "response_ids", "response_mask", *COLUMNS)
WITH_VALUES = {
    "consolidated", "protocol 5", "unconsolidated", "numpy", "torch.save of the DataProto",
    "torch.save of parts",
}  # fmt: skip


def changes(table: Any) -> str:
    return " | ".join(table.metadata["conversion"]["changes"])


def test_non_tensor_numbers_per_row_are_columns(tmp_path):
    batch = rollouts(4)
    values = values_of(batch)
    values["acc"] = np.array([True, False, None, True], object)
    values["format_score"] = np.array([0.5, 0.25, 1.0, 0.0])
    values["pred"] = np.array(["4", "5", "", None], object)
    values["turn_scores"] = np.array([[1.0], [], [0.5], [2.0]], object)
    values["advantage"] = np.array([9.0] * 4)  # a name of the table's own
    proto = data_proto(torch_bytes(tensordict(tensors_of(batch))), values)
    rows, table = read(write(tmp_path / "a.dp", pickled(proto)))
    assert [row["acc"] for row in rows] == [1.0, 0.0, None, 1.0]
    assert [row["format_score"] for row in rows] == [0.5, 0.25, 1.0, 0.0]
    assert {"pred", "turn_scores", "advantage", "min_global_steps"}.isdisjoint(rows[0])
    assert "kept as columns: __num_turns__, acc, format_score" in changes(table)


def test_other_objects_are_not_loaded(tmp_path):
    """Tensors, images and configurations in a pickle are not needed and not constructed."""
    batch = rollouts(4)
    values = values_of(batch)
    inputs = {"pixel_values": torch.ones(2, 3), "kind": Built(Named("omegaconf.nodes", "AnyNode"))}
    image = Built(Named("PIL.Image", "Image"), (), ["RGB", (1, 1), b"abc"])
    values["multi_modal_inputs"] = np.array([inputs, None, inputs, image], object)
    proto = data_proto(torch_bytes(tensordict(tensors_of(batch))), values)
    rows, table = read(write(tmp_path / "a.dp", pickled(proto)))
    assert_rows(rows, batch.rows)
    left = "columns for which the table has no place are left out: extra_info, multi_modal_inputs"
    assert left in changes(table)
    values["extra_info"][1] = Built(Named("my.package", "Config"))
    path = write(tmp_path / "a.dp", pickled(data_proto(None, values)))
    with pytest.raises(RcdiagError, match=r"a\.dp: the file needs my\.package\.Config to load"):
        read(path)


@pytest.mark.parametrize("hold", ["an array", "a list", "a stack"])
def test_group_ids_inside_a_tensordict_are_read(hold, tmp_path):
    """A TensorDict stores other values as NonTensorData, one value or one per row."""
    batch = rollouts(8)
    ids = batch.column("group_id")
    array = np.array(ids, object)
    held = {"an array": non_tensor(array), "a list": non_tensor(ids), "a stack": stacked(ids)}
    columns = {**tensors_of(batch), "uid": held[hold], "note": non_tensor("a fact of all rows")}
    rows, table = read(write(tmp_path / "a.pt", torch_bytes(tensordict(columns))))
    assert_rows(rows, only(batch.rows, "group_id", *TOKENS))
    assert "verl's uid" in changes(table)
    columns["uid"] = non_tensor("one")
    rows, _ = read(write(tmp_path / "a.pt", torch_bytes(tensordict(columns))))
    assert {row["group_id"] for row in rows} == {"one"}
    columns["uid"] = non_tensor(ids[:-1])  # not a list with one value per row
    rows, table = read(write(tmp_path / "a.pt", torch_bytes(tensordict(columns))))
    assert "equal prompts" in changes(table)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_every_cell(form, tmp_path):
    batch = rollouts()
    rows, table = read(write_batch(tmp_path / "dump.dp", batch, form))
    assert_rows(rows, only(batch.rows, *TOKENS, "reward"))
    if form in WITH_VALUES:
        assert_rows(rows, batch.rows)
        assert {row["step"] for row in rows} == {3}
        assert {row["temperature"] for row in rows} == {0.7}
        assert "verl's uid" in changes(table)
    elif "uid" in form:
        assert_rows(rows, only(batch.rows, "group_id"))
    else:
        assert not {"step", "temperature"} & set(table.columns)
        numbers = [row["group_id"] for row in rows]
        assert numbers == [row // 2 for row in range(len(rows))]
        assert "equal prompts" in changes(table)


def test_only_the_attention_mask_decides_which_tokens_are_real(tmp_path):
    batch = rollouts(40, seed=3)
    lengths = [len(row["response_ids"]) for row in batch.rows]
    assert {0, 12} <= set(lengths)
    assert all(row["response_ids"][-1] == PAD for row in batch.rows if row["response_ids"])
    assert any(row["response_mask"][-1:] == [0] for row in batch.rows)
    rows, _ = read(write_batch(tmp_path / "dump.pt", batch, "torch.save of a dict"))
    assert [len(row["response_ids"]) for row in rows] == lengths
    assert_rows(rows, only(batch.rows, *TOKENS))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("form", ["consolidated", "numpy", "torch.save of a dict"])
def test_log_probs_of_other_kinds_are_exact(form, kind, tmp_path):
    batch = rollouts()
    for row in batch.rows:
        for name in COLUMNS:
            row[name] = torch.tensor(row[name]).to(kind).double().tolist()
    floats = {name: tensor for name, tensor in tensors_of(batch, kind).items()}
    rows, table = read(write_batch(tmp_path / "dump.pt", batch, form, **floats))
    assert_rows(rows, only(batch.rows, *TOKENS))
    width = "double" if kind == torch.float64 else "float"
    assert str(table.schema.field("old_log_probs").type) == f"list<element: {width}>"


def test_further_policies_of_a_hook_are_columns(tmp_path):
    batch = rollouts(6)
    tensors = tensors_of(batch)
    tensors["vllm_bf16_log_probs"] = tensors["old_log_probs"].double() * 2
    tensors["vllm_bf16_entropy"] = tensors["entropys"] * 2
    path = tmp_path / "dump.pt"
    torch.save(tensors, path)
    rows, table = read(path)
    assert "vllm_bf16" in table.policies
    for row, truth in zip(rows, batch.rows, strict=True):
        assert row["vllm_bf16_log_probs"] == [2 * x for x in truth["old_log_probs"]]
        assert row["vllm_bf16_entropy"] == [2 * x for x in truth["old_entropy"]]


def test_missing_columns_stay_missing(tmp_path):
    batch = rollouts()
    missing = dict.fromkeys(
        ("rollout_log_probs", "entropys", "advantages", "token_level_scores", "rm_scores")
    )
    path = write(
        tmp_path / "dump.dp",
        pickled(
            data_proto(
                torch_bytes({k: v for k, v in tensors_of(batch).items() if k not in missing}),
                {},
                {},
            )
        ),
    )
    rows, table = read(path)
    assert table.policies == ["old", "ref"]
    assert set(table.columns) == {
        "prompt_ids", "response_ids", "response_mask", "old_log_probs", "ref_log_probs", "group_id",
    }  # fmt: skip
    assert_rows(rows, only(batch.rows, "old_log_probs", "ref_log_probs"))


def test_a_batch_without_a_response_mask_notes_that_all_tokens_count(tmp_path):
    batch = rollouts()
    rows, table = read(write_batch(tmp_path / "a.dp", batch, response_mask=None))
    assert_rows(rows, only(batch.rows, "response_ids", *(n for n in COLUMNS if "log" in n)))
    assert "response_mask" not in table.columns
    assert "every response token counts as sampled" in changes(table)


def test_scores_of_the_agent_loop_are_the_reward_if_there_are_no_others(tmp_path):
    batch = rollouts()
    tensors = tensors_of(batch)
    scores = tensors["token_level_scores"]
    rows, _ = read(write_batch(tmp_path / "a.dp", batch, token_level_scores=None, rm_scores=scores))
    assert_rows(rows, only(batch.rows, "reward"))


def test_rows_of_several_steps_and_ranks_are_sorted_by_number(tmp_path):
    parts = {}
    for step in (10, 9, 1):
        for rank in (10, 2):
            parts[step, rank] = batch = rollouts(4, seed=100 * step + rank)
            write_batch(
                tmp_path / f"step_{step}_rank_{rank}.pt", batch, "torch.save of a dict with uid"
            )
    rows, table = read(tmp_path)
    order = [(1, 2), (1, 10), (9, 2), (9, 10), (10, 2), (10, 10)]
    assert_rows(rows, [row for key in order for row in only(parts[key].rows, *TOKENS, "group_id")])
    assert [row["step"] for row in rows] == [step for step, _ in order for _ in range(4)]
    assert "names of files or folders" in changes(table)
    assert table.where(21) == f"{tmp_path}/step_10_rank_10.pt, row 1"


def skip_dump(folder: Path, step: int, batch: Rollouts, **meta: Any) -> Path:
    values = values_of(batch)
    del values["uid"]
    proto = data_proto(torch_bytes(tensordict(tensors_of(batch))), values, {})
    folder = folder / str(step)
    path = write(folder / "gen_batch.dp", pickled(proto))
    (folder / "meta.json").write_text(json.dumps({"global_steps": step, **meta}))
    return path


def test_rollout_dumps_of_0_9_get_step_and_groups_from_their_folder(tmp_path):
    folder = tmp_path / "exp_project" / "GBS4_N2_in6_out12"
    batches = {step: rollouts(8, seed=step) for step in (2, 10)}
    for step, batch in batches.items():
        skip_dump(folder, step, batch)
    rows, table = read(tmp_path)
    assert_rows(rows, [r for b in batches.values() for r in only(b.rows, *TOKENS, "reward")])
    assert [row["step"] for row in rows] == [2] * 8 + [10] * 8
    assert [row["group_id"] for row in rows] == [f"{i // 8}-{i % 8 // 2}" for i in range(16)]
    assert "groups are 2 consecutive rows" in changes(table)


def test_rows_of_different_prompts_are_not_a_group_despite_the_folder_name(tmp_path):
    batch = rollouts(8, group=4)
    batch.rows = [batch.rows[row] for row in (0, 4, 1, 5, 2, 6, 3, 7)]
    skip_dump(tmp_path / "GBS4_N2_in6_out12", 1, batch)
    rows, table = read(tmp_path)
    assert [row["group_id"] for row in rows] == [0, 1] * 4
    assert "equal prompts" in changes(table)


def test_the_prompts_beside_a_rollout_dump_of_0_8_are_left_out_and_reported(tmp_path):
    folder = tmp_path / "exp" / "GBS4_N2_in6_out12" / "genstep_000007"
    batch = rollouts()
    prompts = {"input_ids": torch.ones(4, 6, dtype=torch.int64)}
    new = data_proto(torch_bytes(tensordict(prompts)), {}, {})
    new_path = write(folder / "new_batch.dp", pickled(new))
    write(
        folder / "gen_batch.dp",
        pickled(data_proto(torch_bytes(tensordict(tensors_of(batch))), {}, {})),
    )
    (folder / "meta.json").write_text('{"global_steps": 12, "gen_steps": 7}')
    rows, table = read(tmp_path)
    assert_rows(rows, only(batch.rows, *TOKENS))
    assert {row["step"] for row in rows} == {12}
    assert "new_batch.dp, the sampler's input, is left out" in changes(table)
    with pytest.raises(RcdiagError, match="batch of prompts, without responses") as caught:
        read(new_path)
    assert "gen_batch.dp" in caught.value.hint


def test_the_file_without_suffix_of_0_6_is_read_without_step(tmp_path):
    batch = rollouts()
    values = values_of(batch)
    del values["uid"]
    proto = data_proto(torch_bytes(tensordict(tensors_of(batch))), values, {})
    path = write(tmp_path / "__GBS4__N2", pickled(proto))
    for source in (path, tmp_path):
        rows, table = read(source)
        assert_rows(rows, only(batch.rows, *TOKENS))
        assert "step" not in table.columns
        assert [row["group_id"] for row in rows] == [f"0-{row // 2}" for row in range(8)]


@pytest.mark.parametrize("with_uid", [False, True])
def test_folders_of_a_fully_asynchronous_run_are_prompts_not_steps(with_uid, tmp_path):
    folder = tmp_path / "GBS4_N2_in6_out12"
    for feed in (0, 1):
        batch = rollouts(2, seed=feed)
        if with_uid:
            for row in batch.rows:
                row["group_id"] = f"uid_sample_0_{feed}"
            values = values_of(batch)
            proto = data_proto(torch_bytes(tensordict(tensors_of(batch))), values, {})
            write(folder / str(feed) / "gen_batch.dp", pickled(proto))
            (folder / str(feed) / "meta.json").write_text(json.dumps({"global_steps": feed}))
        else:
            skip_dump(folder, feed, batch)
    rows, table = read(tmp_path)
    assert "step" not in table.columns
    assert "numbered by prompt" in changes(table)
    assert len({row["group_id"] for row in rows}) == 2


def test_versions_are_those_at_the_start_of_a_row(tmp_path):
    batch = rollouts(4)
    values = values_of(batch)
    for name, versions in {
        "min_global_steps": [3, 3, None, 4],
        "max_global_steps": [3, 5, None, 4],
    }.items():
        values[name] = np.array(versions, object)
    path = write(
        tmp_path / "a.dp", pickled(data_proto(torch_bytes(tensordict(tensors_of(batch))), values))
    )
    rows, table = read(path)
    assert [row["policy_version"] for row in rows] == [3, 3, None, 4]
    note = "weights changed while a row was sampled; policy_version is the first version"
    assert table.metadata["conversion"]["changes"][note] == 1


def test_experts_of_response_tokens_are_read_and_unrecorded_ones_empty(tmp_path):
    batch = rollouts(4)
    layers, chosen = 2, 3
    before, after = batch.attention()
    experts = torch.randint(1, 60, (4, 18, layers, chosen), dtype=torch.int16)
    expected = []
    for row, size in enumerate(after.sum(1).tolist()):
        experts[row, 6 + size - 1 :] = 0  # the engine has no experts of the last token
        cells = experts[row, 6 : 6 + size].reshape(size, layers * chosen).tolist()
        expected.append([[] if not any(cell) else cell for cell in cells])
    rows, _ = read(write_batch(tmp_path / "a.dp", batch, routed_experts=experts))
    assert [row["rollout_routed_experts"] for row in rows] == expected
    assert before.shape == (4, 6)


# TransferQueue


@pytest.mark.parametrize("fills", [0, 2])
def test_filler_rows_of_a_transfer_queue_are_left_out(fills, tmp_path):
    batch = rollouts(10).but_for(0)
    keys = [f"{row['group_id']}_{n % 2}_0" for n, row in enumerate(batch.rows)] + ["x_0_0"] * fills
    path = tmp_path / "GBS5_N2_in6_out12" / "4" / "0" / "tq_batch.pt"
    write(path, torch_bytes(queue_batch(batch, fills, keys)))
    rows, table = read(tmp_path)
    names = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "reward")
    assert_rows(rows, only(batch.rows, *names, "group_id"))
    assert [row["sample_id"] for row in rows] == keys[: len(batch)]
    assert {row["step"] for row in rows} == {5}
    assert {row["policy_version"] for row in rows} == {4}
    assert ("is_padding" in changes(table)) == bool(fills)
    assert "weights changed while" in changes(table)
    assert table.policies == ["rollout"]


def test_rows_of_a_transfer_queue_with_the_trainer_s_log_probs(tmp_path):
    """As the V1 trainer's queue holds them once old log-probs are computed."""
    batch = rollouts(6).but_for(0)
    payload = queue_batch(batch, 2)
    columns = payload["tensordict"].parts[1][1]["_tensordict"]
    columns["old_log_probs"] = columns["entropy"] = columns["rollout_log_probs"]
    rows, table = read(write(tmp_path / "step_5_a.pt", torch_bytes(payload)))
    sampled = [row["rollout_log_probs"] for row in rows]
    assert [row["old_log_probs"] for row in rows] == sampled
    assert [row["old_entropy"] for row in rows] == sampled
    assert len(rows) == len(batch)
    assert table.policies == ["rollout", "old"]


def test_rows_of_a_transfer_queue_may_be_a_stack_of_tensors(tmp_path):
    batch = rollouts(6).but_for(0)
    payload = queue_batch(batch, 0)
    columns = payload["tensordict"].parts[1][1]["_tensordict"]
    for name in ("prompts", "responses", "response_mask", "rollout_log_probs"):
        columns[name] = stacked(list(columns[name].unbind()))
    rows, _ = read(write(tmp_path / "tq_batch.pt", torch_bytes(payload)))
    assert_rows(rows, only(batch.rows, "prompt_ids", "response_ids", "rollout_log_probs"))


def test_incomplete_columns_of_a_transfer_queue_are_left_out_and_reported(tmp_path):
    batch = rollouts(6).but_for(0)
    payload = queue_batch(batch, 0)
    columns = payload["tensordict"].parts[1][1]["_tensordict"]
    columns["rollout_log_probs"] = stacked([*columns["rollout_log_probs"].unbind()[:-1], None])
    columns["rm_scores"] = stacked([None, *columns["rm_scores"].unbind()[1:]])
    rows, table = read(write(tmp_path / "tq_batch.pt", torch_bytes(payload)))
    assert_rows(rows, only(batch.rows, "prompt_ids", "response_ids", "response_mask"))
    assert not table.policies
    assert "rm_scores, rollout_log_probs are left out: rows without a value" in changes(table)
    assert "kept as columns: num_turns" in changes(table)


def test_rows_of_a_transfer_queue_may_be_a_stack_of_plain_lists(tmp_path):
    batch = rollouts(6).but_for(0)
    payload = queue_batch(batch, fills=0)
    names = {"prompts": "prompt_ids", "responses": "response_ids"}
    names |= {name: name for name in ("response_mask", "rollout_log_probs")}
    columns = {theirs: stacked(batch.column(ours)) for theirs, ours in names.items()}
    payload["tensordict"] = tensordict({**columns, "tool_rewards": stacked([[]] * len(batch))})
    rows, _ = read(write(tmp_path / "tq_batch.pt", torch_bytes(payload)))
    assert_rows(rows, only(batch.rows, *names.values()))


def test_rows_of_a_transfer_queue_may_have_equal_lengths(tmp_path):
    batch = rollouts(6)
    batch.rows = [{**batch.rows[1], "group_id": f"g{row}"} for row in range(6)]
    payload = queue_batch(batch, 1)
    columns = payload["tensordict"].parts[1][1]["_tensordict"]
    for name in ("responses", "response_mask", "rollout_log_probs", "rm_scores"):
        columns[name] = torch.stack(list(columns[name].unbind()))
    rows, _ = read(write(tmp_path / "tq_batch.pt", torch_bytes(payload)))
    assert_rows(rows, only(batch.rows, "prompt_ids", "response_ids", "rollout_log_probs", "reward"))


def test_rows_with_lengths_other_than_their_tags_are_refused(tmp_path):
    payload = queue_batch(rollouts(6).but_for(0), 0)
    payload["tags"][2]["response_len"] += 1
    with pytest.raises(RcdiagError, match=r"tq_batch\.pt, row 2: responses has .* its tag says"):
        read(write(tmp_path / "tq_batch.pt", torch_bytes(payload)))


def test_a_column_of_another_length_is_refused_with_its_row(tmp_path):
    batch = rollouts(6).but_for(0)
    payload = queue_batch(batch, 0)
    columns = payload["tensordict"].parts[1][1]["_tensordict"]
    wrong = list(columns["rollout_log_probs"].unbind())
    wrong[3] = wrong[3][:-1]
    columns["rollout_log_probs"] = torch.nested.as_nested_tensor(wrong, layout=torch.jagged)
    with pytest.raises(RcdiagError, match=r"tq_batch\.pt, row 3: column `rollout_log_probs`: "):
        read(write(tmp_path / "tq_batch.pt", torch_bytes(payload)))


# Refused batches


def test_padding_without_attention_mask_is_refused_with_a_hint(tmp_path):
    path = write_batch(tmp_path / "a.pt", rollouts(), "torch.save of a dict", attention_mask=None)
    with pytest.raises(RcdiagError, match="no attention_mask to cut them by") as caught:
        read(path)
    assert "save attention_mask too" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["attention_mask"][2].__setitem__(6, 0), "row 2: attention_mask of the resp"),
        (lambda t: t["attention_mask"][6].__setitem__(5, 0), "row 6: attention_mask of the prompt"),
        (lambda t: t["attention_mask"][1].__setitem__(7, 3), "row 1: attention_mask of the resp"),
        (lambda t: t.update(attention_mask=t["attention_mask"][:, 1:]), "17 columns"),
        (lambda t: t.update(old_log_probs=t["old_log_probs"][:, :5]), r"has the shape \[8, 5\]"),
        (lambda t: t.update(old_log_probs=t["old_log_probs"][:, :11]), r"has the shape \[8, 11\]"),
        (lambda t: t.update(response_mask=torch.ones(8, 13)), r"has the shape \[8, 13\]"),
        (lambda t: t.update(old_log_probs=t["old_log_probs"][:3]), "has 3 rows, responses has 8"),
        (lambda t: t["responses"][1].__setitem__(4, -1), "row 1: .*it holds token id -1"),
        (lambda t: t["responses"][1].__setitem__(4, 2**40), "row 1"),
        (lambda t: t["response_mask"][1].__setitem__(4, 2), "row 1: .*response_mask"),
        (lambda t: t["response_mask"][6].__setitem__(-1, 1), "row 6: response_mask is not 0 at pa"),
        (lambda t: t.update(responses=t["responses"].float()), "response_ids"),
        (lambda t: t.update(advantages=torch.ones(8, 12, 2)), "2 dimensions"),
    ],
)
def test_an_inconsistent_batch_is_refused_with_its_row(change, message, tmp_path):
    batch = rollouts()
    tensors = tensors_of(batch)
    assert len(batch.rows[2]["response_ids"]) > 1
    change(tensors)
    path = write(tmp_path / "a.dp", FORMS["consolidated"](tensors, values_of(batch)))
    with pytest.raises(RcdiagError, match=message) as caught:
        read(path)
    assert "a.dp" in caught.value.message


def test_a_mask_that_includes_prompts_is_cut_to_the_responses(tmp_path):
    """verl's actors cut it to the response, so a 1 in the prompt has no effect."""
    batch = rollouts()
    tensors = tensors_of(batch)
    prompts = torch.ones_like(tensors["prompts"])
    tensors["loss_mask"] = torch.cat([prompts, tensors.pop("response_mask")], 1)
    path = write(tmp_path / "a.dp", FORMS["consolidated"](tensors, values_of(batch)))
    assert_rows(read(path)[0], only(batch.rows, "response_ids", "response_mask"))
    tensors["loss_mask"][5, -1] = 1
    write(path, FORMS["consolidated"](tensors, values_of(batch)))
    with pytest.raises(RcdiagError, match="row 5: loss_mask is not 0 at padding"):
        read(path)


def test_values_of_another_number_of_rows_are_refused(tmp_path):
    batch = rollouts()
    values = values_of(batch.but_for(1))
    path = write(tmp_path / "a.dp", FORMS["consolidated"](tensors_of(batch), values))
    with pytest.raises(RcdiagError, match=r"a\.dp: uid has 7 rows, responses has 8"):
        read(path)


def test_a_column_wider_than_its_responses_is_refused(tmp_path):
    tensors = tensors_of(rollouts())
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    tensors["old_log_probs"] = torch.nn.functional.pad(tensors["old_log_probs"], (0, 6))
    path = write(tmp_path / "a.dp", FORMS["consolidated"](tensors, values_of(rollouts())))
    with pytest.raises(RcdiagError, match=r"old_log_probs has the shape \[8, 18\], responses has"):
        read(path)


def test_a_batch_without_rows_or_tensors_is_refused(tmp_path):
    batch = rollouts(2)
    empty = {name: tensor[:0] for name, tensor in tensors_of(batch).items()}
    path = write(tmp_path / "a.dp", torch_bytes(empty))
    with pytest.raises(RcdiagError, match=r"a\.dp: the table has zero rows"):
        read(path)
    path = write(tmp_path / "a.dp", pickled(data_proto(torch_bytes(None), {})))
    with pytest.raises(RcdiagError, match="without responses"):
        read(path)


def test_a_small_batch_of_0_8_is_part_of_a_step_not_a_prompt(tmp_path):
    """A step may be sampled in several batches, one of which has a single prompt."""
    proto = data_proto(torch_bytes(tensordict(tensors_of(rollouts(2)))), {}, {})
    folder = tmp_path / "GBS4_N2_in6_out12" / "genstep_000007"
    write(folder / "gen_batch.dp", pickled(proto))
    (folder / "meta.json").write_text('{"global_steps": 12, "gen_steps": 7}')
    rows, _ = read(tmp_path)
    assert [row["step"] for row in rows] == [12, 12]


def test_another_torch_file_is_not_taken_for_verl(tmp_path):
    path = write(tmp_path / "model.pt", torch_bytes({"weight": torch.ones(3)}))
    with pytest.raises(RcdiagError, match="not a format that rcdiag knows"):
        read(path)
    with pytest.raises(RcdiagError, match="without responses"):
        read(path, format="verl")


def test_a_large_batch_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("rcdiag.table.readers.padded.ELEMENTS_PER_BATCH", 40)
    batch = rollouts(50, seed=9)
    rows, table = read(write_batch(tmp_path / "a.dp", batch))
    assert_rows(rows, batch.rows)
    assert table.where(49).endswith("a.dp, row 49")


@pytest.mark.parametrize("name", ["gen_batch.dp", "tq_batch.pt"])
@pytest.mark.parametrize("others", [True, False])
def test_a_finished_step_without_its_batch_is_refused(name, others, tmp_path):
    run = tmp_path / "GBS2_N2_in8_out8"
    steps = [("1", True), ("2", False)] if others else [("2", False)]
    for step, kept in steps:
        folder = run / step / "0" if name == "tq_batch.pt" else run / step
        folder.mkdir(parents=True)
        meta = {"global_steps": int(step)} | ({"num_trajectories": 4} if "tq" in name else {})
        (folder / "meta.json").write_text(json.dumps(meta))
        if kept:
            torch.save(tensors_of(rollouts(4)), folder / name)
    with pytest.raises(RcdiagError, match=rf"2/(0/)?{name}: no such file, although"):
        find_files(str(tmp_path))


def test_other_files_named_meta_json_are_not_taken_for_verl(tmp_path):
    (tmp_path / "meta.json").write_text(json.dumps({"model": "made-up"}))
    torch.save(tensors_of(rollouts(4)), tmp_path / "batch.pt")
    assert [file.path.name for file in find_files(str(tmp_path)).files] == ["batch.pt"]
