"""Every field of every result is documented."""

from __future__ import annotations

from types import ModuleType

import pytest
from msgspec import Struct

from rcdiag.results import KINDS, base, compare, diagnosis, replay, score, sweep
from rcdiag.results.doc import described_types, documented_fields

MODULES = (base, diagnosis, score, compare, sweep, replay)


def defined_in(module: ModuleType) -> list[type]:
    """Return the structs of a module."""
    return [
        item
        for item in vars(module).values()
        if isinstance(item, type)
        and issubclass(item, Struct)
        and item.__module__ == module.__name__
    ]


def reached(*kinds: type) -> set[type]:
    """Return all structs and TypedDicts that occur in results of some kinds."""
    result: set[type] = set()
    waiting = list(kinds)
    while waiting:
        owner = waiting.pop()
        if owner not in result:
            result.add(owner)
            for field in documented_fields(owner):
                waiting += described_types(field.type)
                waiting += [] if field.doc.keys is None else [field.doc.keys]
    return result


ALL = sorted(reached(*KINDS.values()), key=lambda owner: owner.__name__)


def test_every_struct_occurs_in_a_result():
    defined = {item for module in MODULES for item in defined_in(module)}
    assert len(defined) > 30
    assert defined <= set(ALL)


def test_every_field_of_every_result_has_a_doc_with_a_sentence():
    for owner in ALL:
        assert documented_fields(owner)
        for field in documented_fields(owner):
            says = field.doc.says
            assert says[0].isupper(), field.name
            assert says.endswith("."), field.name
            assert len(says.split()) > 2, field.name
            assert not says.startswith("The same"), field.name


# The same meaning in different parts: a bin and a factor, a table and a step.
OF_PARTS = {
    *("about", "figures", "label", "message", "name", "steps", "title", "value"),
    *("cells", "edges", "log_ratio", "log_ratio_histogram", "log_ratio_mean", "log_ratio_abs_max"),
    *("ess_seq", "k3_kl", "level", "num_sequences", "policies", "row", "rows", "scoring"),
    *("learning_rate", "minibatches"),
    # Of a finding and a cause, a preset and a table, a token and an action, a run and an action.
    *("slug", "evidence", "verdict", "text", "command"),
    # Of a converted table and of a sample of tokens.
    "tokens",
    # Of one token and of several, of a preset and of the difference of two.
    *("behavior_log_prob", "position", "texts", "token_id", "token_ids"),
    *("grad_norm", "kl_rollout_new", "loss"),
}


def test_fields_do_not_share_a_name_with_another_meaning():
    says: dict[str, set[str]] = {}
    for owner in ALL:
        for field in documented_fields(owner):
            says.setdefault(field.name, set()).add(field.doc.says)
    assert {name for name, words in says.items() if len(words) > 1} == OF_PARTS


def test_a_field_without_documentation_is_refused():
    class Wordless(Struct):
        value: float

    with pytest.raises(TypeError, match=r"Wordless\.value"):
        documented_fields(Wordless)
