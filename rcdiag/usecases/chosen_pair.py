"""Which two policies a command compares, and whether a table has only one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rcdiag.errors import RcdiagError, did_you_mean, setting
from rcdiag.table.schema import LOG_PROBS
from rcdiag.table.table import Table

BEHAVIOR, TARGET = "rollout", "old"  # by default


class ChosenPair(Struct, frozen=True):
    """Two policies, and the reason of the choice if policies are scored and the user named none."""

    behavior: str
    target: str
    reason: str | None = None


def choose_pair(
    recorded: Sequence[str], scored: Sequence[str], behavior: str | None, target: str | None
) -> ChosenPair:
    """Choose the pair to compare from what the user named, else from what there is.

    `scored` are policies that will be scored. `rollout` and `old` are compared if both are there;
    then the reason says which scored policies are not compared. Otherwise a single scored policy is
    compared with the single recorded one.
    """
    default = ChosenPair(behavior or BEHAVIOR, target or TARGET)
    others = [name for name in scored if name not in (BEHAVIOR, TARGET)]
    if behavior is not None or target is not None or not others:
        return default
    if {BEHAVIOR, TARGET} <= {*recorded, *scored}:
        names, are = ", ".join(others), "is" if len(others) == 1 else "are"
        return ChosenPair(
            BEHAVIOR,
            TARGET,
            f"{names} {are} scored, but {BEHAVIOR} and {TARGET} are compared; for another pair use "
            f"{setting('behavior')} and {setting('target')}, for all pairs `rcdiag compare`",
        )
    if len(recorded) != 1 or len(scored) != 1:
        return default
    (one,), (other,) = recorded, scored
    first, second = (other, one) if one == TARGET else (one, other)
    reason = f"{other} is compared with {one}, the only recorded policy"
    return ChosenPair(first, second, reason)


def check_pair(dump: Table, behavior: str, target: str, scored: Sequence[str] = ()) -> None:
    """Refuse a pair with a policy that is neither recorded nor among those to be `scored`."""
    if behavior == target:
        raise RcdiagError(
            f"behavior and target are both `{behavior}`", hint="a mismatch needs two policies"
        )
    policies = [*dump.policies, *(name for name in scored if name not in dump.policies)]
    pair = {"behavior": behavior, "target": target}
    missing = {option: name for option, name in pair.items() if name not in policies}
    for option, name in missing.items():
        _refuse_column(dump, option, name)
    lacking = [f"{name}_log_probs" for name in missing.values()]
    if missing and len(policies) >= 2 and not dump.may_mean(*lacking):
        name = next(iter(missing.values()))
        raise RcdiagError(
            f"{dump.name}: no `{name}_log_probs`; there are policies {', '.join(policies)}",
            hint=f"{did_you_mean(name, policies)}choose two: {setting('behavior', policies[-2])}, "
            f"{setting('target', policies[-1])}; or score it: "
            f"{setting('policies', f'{name}=hf:float32,model=PATH', '--policy')}",
        )
    dump.require(*lacking)


def _refuse_column(dump: Table, option: str, name: str) -> None:
    """Refuse the name of a column in place of a policy's, and say how to read that column."""
    if name in dump.columns and (column := LOG_PROBS.fullmatch(name)):
        raise RcdiagError(
            f"{setting(option, name)} is a column; its policy is `{column['policy']}`",
            hint=setting(option, column["policy"]),
        )
    read_as = next((own for own, file in dump.renames.items() if file == name), "")
    if column := LOG_PROBS.fullmatch(read_as):
        raise RcdiagError(
            f"{setting(option, name)} is a column, which is read as policy `{column['policy']}`",
            hint=setting(option, column["policy"]),
        )
    policy = dump.policy_of(name)
    if policy is not None:
        raise RcdiagError(
            f"{setting(option, name)} is a column, not a policy",
            hint=f"--column {policy}_log_probs={name} --{option} {policy}",
        )


def only_policy(
    table: Table, named: Sequence[str | None] = (), scored: Sequence[str] = ()
) -> str | None:
    """Return the only policy of a table, unless the user asks for another.

    None if the user has `named` a missing policy, if some policies are to be `scored`, or if a
    column of the table may hold the missing log-probs under another name.
    """
    if len(table.policies) != 1 or scored:
        return None
    (only,) = table.policies
    if any(name not in (None, only) for name in named) or None not in (*named, None):
        return None
    lacking = [f"{name}_log_probs" for name in (BEHAVIOR, TARGET) if name != only]
    return None if table.may_mean(*lacking) else only


def refuse_one(table: Table, command: str, named: Sequence[str | None] = ()) -> None:
    """Refuse a table of one policy for a command that compares two, and say how to score another.

    `named` are the policies that the user asks for.
    """
    if only := only_policy(table, named):
        raise RcdiagError(
            f"{table.title}: the table has one policy, `{only}`; {command} needs two",
            hint=f"rcdiag score {table.on_command_line} --model CKPT -o scored.parquet scores the "
            f"other, then rcdiag {command} scored.parquet",
        )
