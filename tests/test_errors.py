"""Errors of libraries in our own messages."""

from __future__ import annotations

from rcdiag.errors import first_line


def test_of_a_librarys_error_the_first_line_is_quoted():
    assert first_line(ValueError("\nno layer q_prj\nlayers are ...")) == "no layer q_prj"


def test_an_error_without_a_message_is_named_by_its_type():
    assert first_line(ValueError()) == "ValueError()"
