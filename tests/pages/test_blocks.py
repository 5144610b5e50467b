"""Cells of tables: numbers of one column have one number of digits."""

from __future__ import annotations

from math import nan

from rcdiag.pages.blocks import amount, share


def test_zeros_fill_up_three_digits():
    values = [0.2, 0.243, 0.0065, 3.0, 0.0, 1.0, 0.9999]
    written = ["0.200", "0.243", "0.00650", "3", "0", "1", "0.9999"]
    assert [amount(value).text for value in values] == written


def test_shares_have_three_digits_but_none_and_all():
    values = [0.18, 0.174, 0.03, 0.0, 1.0, 0.9999, 1e-6, 2.5, nan, None]
    written = ["18.0%", "17.4%", "3.00%", "0%", "100%", "99.99%", "<0.01%", "250%", "nan", ""]
    assert [share(value).text for value in values] == written
