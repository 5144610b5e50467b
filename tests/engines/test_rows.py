"""How sequences are put into rectangles for an engine."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rcdiag.engines.padded_batches import length_buckets, padded, padded_width


@given(st.integers(1, 1 << 20))
def test_a_width_holds_the_longest_and_wastes_at_most_a_sixteenth(longest):
    width = padded_width(longest)
    assert longest <= width <= longest * 17 / 16
    assert padded_width(width) == width


def test_there_are_sixteen_widths_an_octave():
    assert len({padded_width(longest) for longest in range(1025, 2049)}) == 16
    assert len({padded_width(longest) for longest in range(32, 64)}) == 17


def test_padding_is_on_the_right_and_keeps_to_the_context():
    rows = [np.arange(1, 98), np.arange(1, 3)]
    assert padded(rows, None).shape == (2, 100)
    assert padded(rows, 98).shape == (2, 98)
    # A row that is longer than the model is refused elsewhere, not cut here.
    assert padded(rows, 50).shape == (2, 97)
    assert padded(rows, None)[1].tolist() == [1, 2] + [0] * 98
    assert padded(rows, None)[0, :97].tolist() == list(range(1, 98))


@given(st.lists(st.integers(0, 700), max_size=60), st.integers(1, 3000))
def test_every_row_with_something_to_score_is_in_one_bucket(lengths, batch_tokens):
    sizes = np.array(lengths, dtype=np.int64)
    buckets = list(length_buckets(sizes, batch_tokens))
    taken = np.concatenate([np.zeros(0, int), *buckets])
    assert sorted(taken) == np.flatnonzero(sizes).tolist()
    for bucket in buckets:
        assert (
            len(bucket) == 1 or len(bucket) * padded_width(int(sizes[bucket].max())) <= batch_tokens
        )
