"""New problems for the sample policy, their tokens, and grading of answers."""

from __future__ import annotations

import importlib
import random
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "sample_data" / "policy"
PAD, END, USER, ASSISTANT, CALL, CALL_END, RESULT, RESULT_END = range(8)


@dataclass(frozen=True)
class Question:
    """A word problem as tokens, with its answer."""

    ids: np.ndarray
    answer: int


@cache
def _problems() -> Any:
    """Import the module that generated the problems of the sample data."""
    folder = str(ROOT / "sample_data")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("problems")
    finally:
        sys.path.remove(folder)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(POLICY / "step_8" / "tokenizer.json"))


def encode(text: str) -> np.ndarray:
    return np.array(tokenizer().encode(text, add_special_tokens=False).ids, np.int32)


def decode(ids: np.ndarray) -> str:
    return tokenizer().decode(ids.tolist(), skip_special_tokens=False)


def questions(seed: int, count: int, *, operations: int, tools: bool = False) -> list[Question]:
    """Draw problems with a maximal number of operations; with tools they need the calculator."""
    source, modes = random.Random(seed), {"tool": 1.0} if tools else {"full": 0.9, "brief": 0.1}
    drawn = [_problems().draw_problem(source, modes, operations) for _ in range(count)]
    return [Question(encode(problem.prompt), problem.answer) for problem in drawn]


def tool_result(turn: np.ndarray) -> np.ndarray:
    """Return the tokens with which the calculator answers the call that ends a turn."""
    call = decode(turn[turn != CALL_END]).rpartition("<call>")[2]
    return encode(f"<result>{_problems().calculate(call)}</result>")


def reward(response: np.ndarray, answer: int) -> float:
    """Return 1 if a response has ended and its last line is the answer."""
    if not len(response) or response[-1] != END:
        return 0.0
    return float(_problems().grade(decode(response[:-1]), answer))
