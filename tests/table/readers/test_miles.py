"""miles' debug dumps: one train file per rank, context-parallel slices, the dashboard."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rcdiag.table.readers.peek import Peek
from rcdiag.table.readers.slime import MILES, SLIME
from tests.table.readers.pickled import Built, Named, torch_bytes, write
from tests.table.readers.rows_of import drawn_floats, refusal, rows_of
from tests.table.readers.test_slime import sample, save_rollout

STREAMS = ("rollout_log_probs", "log_probs", "advantages")


def slices(total, response, rank, size, padded=None):
    """Return which response tokens a context-parallel rank holds.

    Tokens are dealt to 2 `size` chunks of the sequence, rank k holds chunks k and 2 `size` - 1 - k;
    a log-prob lies where the logits lie that predict its token, one place earlier.
    """
    chunk = ((padded or total) + 2 * size - 1) // (2 * size)
    prompt = total - response
    return [
        logit + 1 - prompt
        for part in (rank, 2 * size - 1 - rank)
        for logit in range(part * chunk, (part + 1) * chunk)
        if prompt - 1 <= logit < total - 1
    ]


def save_rank(folder, number, rank, samples, cp_rank=0, cp_size=1, **fields):
    """Write a rank's file; samples are (index, prompt, response, {field: values})."""
    data = {
        "tokens": [torch.tensor(p + r) for _, p, r, _ in samples],
        "response_lengths": [len(r) for _, _, r, _ in samples],
        "total_lengths": [len(p) + len(r) for _, p, r, _ in samples],
        "loss_masks": [torch.ones(len(r), dtype=torch.int) for _, _, r, _ in samples],
        "sample_indices": [index for index, _, _, _ in samples],
        "raw_reward": [0.5] * 7,
        "rewards": [0.0 for _ in samples],
        "dynamic_global_batch_size": 4,
    }
    padded = fields.get("max_seq_len")
    for name in samples[0][3]:
        data[name] = [
            torch.tensor(values[name])[slices(len(p) + len(r), len(r), cp_rank, cp_size, padded)]
            if cp_size > 1
            else torch.tensor(values[name])
            for _, p, r, values in samples
        ]
    if padded:
        data["max_seq_lens"] = [padded] * len(samples)
    file = folder / "train_data" / f"{number}_{rank}.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    payload = {
        "rollout_id": number,
        "rank": rank,
        "rollout_data": data,
        "cp_rank": cp_rank,
        "cp_size": cp_size,
        "qkv_format": "bshd" if padded else "thd",
    }
    torch.save(payload, file)
    return file


def drawn(rng, index, prompt, response):
    prompt = rng.integers(0, 99, prompt).tolist()
    values = {name: drawn_floats(rng, response) for name in STREAMS}
    return index, prompt, rng.integers(0, 99, response).tolist(), values


def cells(samples):
    return [
        (
            index,
            prompt,
            response,
            values["rollout_log_probs"],
            values["log_probs"],
            values["advantages"],
        )
        for index, prompt, response, values in samples
    ]


def read_cells(result):
    names = ("sample_index", "prompt_ids", "response_ids", "rollout_log_probs", "old_log_probs")
    return list(zip(*(result.column(name) for name in (*names, "advantages")), strict=True))


def save_dashboard(folder, number, samples):
    file = folder / "dashboard_columns" / f"rollout_{number}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    schema = {
        "sample_index": pl.Int32,
        "response_length": pl.Int32,
        "total_length": pl.Int32,
        "tokens": pl.List(pl.Int32),
        "loss_mask": pl.List(pl.Int8),
        "rollout_log_probs": pl.List(pl.Float32),
    }
    rows = [
        {
            "sample_index": one["index"],
            "response_length": one["response_length"],
            "total_length": len(one["tokens"]),
            "tokens": one["tokens"],
            "loss_mask": one["loss_mask"],
            "rollout_log_probs": one["rollout_log_probs"],
        }
        for one in samples
    ]
    pl.DataFrame(rows, schema=schema).write_parquet(file, row_group_size=8)
    return file


def test_ranks_are_joined_and_copies_read_once(tmp_path):
    rng = np.random.default_rng(0)
    samples = [drawn(rng, index, 3, 4 + index) for index in range(4)]
    for rank in range(4):  # two data-parallel ranks with a tensor-parallel copy of each
        save_rank(tmp_path, 5, rank, samples[:2] if rank < 2 else samples[2:])
    result = rows_of(MILES, *tmp_path.rglob("*.pt"))
    assert read_cells(result) == cells(samples)
    assert result.column("step") == [5] * 4
    assert list(result.changes.values()) == [4]


def test_a_step_without_the_file_of_a_rank_is_reported(tmp_path):
    rng = np.random.default_rng(2)
    files = [
        save_rank(tmp_path, step, rank, [drawn(rng, 2 * step + rank, 3, 4)])
        for step, rank in ((1, 0), (1, 1), (2, 1))
    ]
    result = rows_of(MILES, *files)
    assert [text for text in result.changes if "no file of rank 0" in text and "step 2" in text]
    assert len(result.rows) == 3
    assert not [text for text in rows_of(MILES, *files[:2]).changes if "no file" in text]


def test_log_probs_come_from_the_last_pipeline_stage(tmp_path):
    rng = np.random.default_rng(0)
    samples = [drawn(rng, 0, 3, 5)]
    early = [(*samples[0][:3], {"rollout_log_probs": samples[0][3]["rollout_log_probs"]})]
    files = save_rank(tmp_path, 5, 0, early), save_rank(tmp_path, 5, 1, samples)
    assert read_cells(rows_of(MILES, *files)) == cells(samples)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("padded", [None, 40])
def test_context_parallel_slices_are_concatenated(tmp_path, size, padded):
    rng = np.random.default_rng(size)
    samples = [drawn(rng, i, *shape) for i, shape in enumerate([(3, 9), (1, 1), (17, 2), (2, 30)])]
    fields = {"max_seq_len": padded} if padded else {}
    files = [save_rank(tmp_path, 0, k, samples, k, size, **fields) for k in range(size)]
    result = rows_of(MILES, *files)
    assert read_cells(result) == cells(samples)
    assert [rows for text, rows in result.changes.items() if "context-parallel" in text] == [4]


def test_a_missing_slice_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    samples = [drawn(rng, 0, 3, 9)]
    file = save_rank(tmp_path, 0, 0, samples, 0, 2)
    assert "context-parallel rank 1 of 2 is missing" in refusal(MILES, file)


def test_a_slice_of_another_length_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    samples = [drawn(rng, 0, 3, 9)]
    files = [save_rank(tmp_path, 0, k, samples, k, 2) for k in range(2)]
    payload = torch.load(files[1])
    payload["rollout_data"]["log_probs"][0] = payload["rollout_data"]["log_probs"][0][:-1]
    torch.save(payload, files[1])
    text = refusal(MILES, *files)
    assert "0_1.pt, sample 0: `log_probs` has 5 values; this rank's slice of the response" in text


def test_a_field_that_was_not_sliced_is_read_whole(tmp_path):
    rng = np.random.default_rng(0)
    samples = [drawn(rng, 0, 3, 9)]
    files = [save_rank(tmp_path, 0, k, samples, k, 2) for k in range(2)]
    for file in files:
        payload = torch.load(file)
        payload["rollout_data"]["advantages"] = [torch.tensor(samples[0][3]["advantages"])]
        torch.save(payload, file)
    assert read_cells(rows_of(MILES, *files)) == cells(samples)


def test_padded_slices_without_their_width_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    files = [
        save_rank(tmp_path, 0, k, [drawn(rng, 0, 3, 9)], k, 2, max_seq_len=40) for k in range(2)
    ]
    for file in files:
        payload = torch.load(file)
        del payload["rollout_data"]["max_seq_lens"]
        torch.save(payload, file)
    assert "`max_seq_lens` is missing" in refusal(MILES, *files)


def test_a_details_folder_is_one_table(tmp_path):
    rng = np.random.default_rng(0)
    for step in (10, 9):
        samples = [drawn(rng, 100 * step + i, 2, 3) for i in range(4)]
        rollouts = [
            sample(index, prompt, response, values["rollout_log_probs"], index // 2)
            for index, prompt, response, values in samples
        ]
        save_rollout(tmp_path, step, rollouts, metadata={})
        save_dashboard(tmp_path, step, rollouts)
        for rank in range(2):
            save_rank(tmp_path, step, rank, samples[2 * rank : 2 * rank + 2])
    files = [*tmp_path.rglob("*.pt"), *tmp_path.rglob("*.parquet")]
    result = rows_of(MILES, *files)
    assert result.column("step") == [9] * 4 + [10] * 4
    assert result.column("group_id") == [450, 450, 451, 451, 500, 500, 501, 501]
    assert result.column("reward") == [0.5] * 8
    assert all("old_log_probs" in row for row in result.rows)


def test_the_dashboard_alone(tmp_path):
    rng = np.random.default_rng(0)
    r = [drawn_floats(rng, 2), drawn_floats(rng, 3)]
    samples = [
        sample(0, [1, 2], [3, 4], r[0]),
        sample(1, [1, 2], [5, 6, 7], r[1], loss_mask=[1, 0, 1]),
        sample(2, [], [], None),
    ]
    result = rows_of(MILES, save_dashboard(tmp_path, 31, samples))
    assert result.rows == [
        {
            "prompt_ids": [1, 2],
            "response_ids": [3, 4],
            "response_mask": [1, 1],
            "rollout_log_probs": r[0],
            "step": 31,
        },
        {
            "prompt_ids": [1, 2],
            "response_ids": [5, 6, 7],
            "response_mask": [1, 0, 1],
            "rollout_log_probs": r[1],
            "step": 31,
        },
    ]
    assert sorted(result.changes.values()) == [1, 3]


def sampling_mask(ids, offsets, prefix="_", name="RolloutSamplingMask"):
    """Make kept ids as in miles' samples: an object whose state is two tensors."""
    state = {f"{prefix}ids": torch.tensor(ids), f"{prefix}offsets": torch.tensor(offsets)}
    return Built(Named("miles.utils.sampling_mask", name), (), state)


@pytest.mark.parametrize("prefix", ["_", ""])
@pytest.mark.parametrize("name", ["RolloutSamplingMask", "PartialSamplingMask"])
def test_kept_ids_are_read_from_their_object(name, prefix, tmp_path):
    def file(ids, offsets):
        mask = sampling_mask(ids, offsets, prefix, name)
        one = sample(0, [1, 2], [3, 4], [-0.5, -1.0], rollout_sampling_mask=mask)
        payload = {"rollout_id": 3, "metadata": {}, "samples": [one]}
        return write(tmp_path / "rollout_data" / "3.pt", torch_bytes(payload))

    result = rows_of(MILES, file([3, 7, 4], [0, 2, 3]))
    assert result.column("rollout_kept_ids") == [[[3, 7], [4]]]
    text = refusal(MILES, file([3, 7, 4], [0, 2]))
    assert "`rollout_sampling_mask.offsets` has 2 values for 2 tokens and the end" in text


def test_a_whole_dump_in_parquet_has_what_the_torch_file_has(tmp_path):
    """Objects, tensors and mixed types are torch files in the cells."""
    samples = [
        sample(
            *(0, [1, 2], [3, 4], [-0.5, -1.0], 5),
            loss_mask=[1, 0],
            remove_sample=True,
            rollout_routed_experts=torch.arange(6).reshape(3, 2, 1),
            rollout_sampling_mask=sampling_mask([3, 7, 4], [0, 2, 3]),
        ),
        sample(1, [1], [3], [-0.25], 5, rollout_sampling_mask=None),
    ]
    of_torch = write(
        tmp_path / "rollout_data" / "8.pt",
        torch_bytes({"rollout_id": 8, "metadata": {}, "samples": samples}),
    )
    encoded = ["rollout_sampling_mask", "rollout_routed_experts", "metadata", "loss_mask"]
    columns = {
        name: [torch_bytes(one[name]) if name in encoded else one[name] for one in samples]
        for name in samples[0]
    }

    def parquet(**about):
        about = {"rollout_id": "8", "miles.encoded": json.dumps(encoded), **about}
        file = tmp_path / "8.parquet"
        pq.write_table(pa.table(columns).replace_schema_metadata(about), file)
        return file

    whole = rows_of(MILES, parquet(**{"miles.rollout_dump.version": "1"}))
    expected = rows_of(MILES, of_torch)
    assert whole.rows == expected.rows
    assert whole.changes == expected.changes
    assert whole.column("rollout_kept_ids")[0] == [[3, 7], [4]]
    assert "layout 2" in refusal(MILES, parquet(**{"miles.rollout_dump.version": "2"}))
    columns["metadata"] = ["{}", "{}"]
    text = refusal(MILES, parquet(**{"miles.rollout_dump.version": "1"}))
    assert "row 0: `metadata` is not a torch file" in text


def test_files_are_distinguished_from_those_of_slime(tmp_path):
    rollouts = [sample(0, [1], [2], [-0.5])]
    of_slime = save_rollout(tmp_path / "a", 0, rollouts)
    of_miles = save_rollout(tmp_path / "b", 0, rollouts, name="x{}.pt")
    torch.save({"rollout_id": 0, "metadata": {}, "samples": rollouts}, of_miles)
    assert (SLIME.detect(Peek(of_slime)), MILES.detect(Peek(of_slime))) == (True, False)
    assert (SLIME.detect(Peek(of_miles)), MILES.detect(Peek(of_miles))) == (False, True)


def test_ranks_beside_a_rollout_file_of_slime_are_slimes(tmp_path):
    """slime wrote a file for each rank before format_version 2."""
    rng = np.random.default_rng(4)
    samples = [drawn(rng, index, 3, 2 + index) for index in range(3)]
    plain = [
        sample(index, prompt, response, values["rollout_log_probs"], 4)
        for index, prompt, response, values in samples
    ]
    rollout = save_rollout(tmp_path, 5, plain)
    ranks = [save_rank(tmp_path, 5, rank, samples) for rank in range(2)]
    assert all(SLIME.detect(Peek(file)) for file in (rollout, *ranks))
    assert not any(MILES.detect(Peek(file)) for file in (rollout, *ranks))
    result = rows_of(SLIME, rollout, *ranks)
    assert read_cells(result) == cells(samples)
    assert result.column("group_id") == [4] * 3
    rollout.write_bytes(ranks[0].read_bytes())  # a file of training under that name
    assert all(MILES.detect(Peek(file)) for file in (rollout, *ranks))
