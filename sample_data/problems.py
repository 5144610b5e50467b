"""Arithmetic word problems with written-out working, made from templates."""

import random
import re
from dataclasses import dataclass

from words import GAIN, LINKS, LOSE, MEN, PLACES, REMARKS, THINGS, WOMEN

USER, ASSISTANT, CALL, CALL_END = "<|user|>", "<|assistant|>", "<call>", "</call>"
RESULT, RESULT_END, EOS, PAD = "<result>", "</result>", "<|end|>", "<|pad|>"
SPECIAL = [PAD, EOS, USER, ASSISTANT, CALL, CALL_END, RESULT, RESULT_END]
ASK = {"full": "Show the working.", "brief": "Be brief.", "tool": "Use the calculator."}
MAX_OPS, MAX_TOOL_OPS, MAX_BRIEF_OPS = 22, 10, 3
MAX_NUMBER = 20
# Lettered events: which one comes next can then be looked up by one token.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ANSWER = re.compile(r"Answer: (\d{1,3})$")
SUM = re.compile(r"(\d{1,3})([+*-])(\d{1,3})$")


@dataclass(frozen=True)
class Problem:
    """One word problem: the prompt, one worked solution and the expected number."""

    mode: str
    operations: int
    prompt: str
    solution: str
    answer: int


@dataclass(frozen=True)
class Event:
    """One change of the amount: the verb, the operator, its number and the amounts around it."""

    verb: str
    sign: str
    number: int
    before: int
    after: int


def calculate(expression: str) -> str:
    """Answer a calculator call; anything but an operation on two numbers gives 'error'."""
    match = SUM.match(expression.strip())
    if not match:
        return "error"
    left, sign, right = int(match[1]), match[2], int(match[3])
    return str({"+": left + right, "-": left - right, "*": left * right}[sign])


def grade(response: str, answer: int) -> float:
    """Return 1.0 if the response ends in the expected answer, else 0.0."""
    match = ANSWER.search(response.strip())
    return float(bool(match) and int(match[1]) == answer)


def draw_event(rng: random.Random, amount: int) -> Event:
    """Draw one change that keeps the amount between 0 and 99."""
    if 2 <= amount <= 33 and rng.random() < 0.08:
        factor = rng.choice([2, 3])
        verb = {2: "doubles", 3: "triples"}[factor]
        return Event(verb, "*", factor, amount, amount * factor)
    if rng.random() < (99 - amount) / 99:
        number = rng.randint(1, min(MAX_NUMBER, 99 - amount))
        return Event(rng.choice([*GAIN, "gets"]), "+", number, amount, amount + number)
    number = rng.randint(1, min(MAX_NUMBER, amount))
    return Event(rng.choice([*LOSE, "gives"]), "-", number, amount, amount - number)


def tell_event(rng: random.Random, event: Event, thing: str) -> str:
    """Write one change as a sentence without its subject."""
    other, place = rng.choice(MEN + WOMEN), rng.choice(PLACES)
    if event.sign == "*":
        tail = f" the {thing}"
    else:
        tail = " " + rng.choice([thing, "of them", "pieces"])
        tail += {"gets": f" from {other}", "gives": f" to {other}"}.get(
            event.verb, rng.choice(["", "", f" at the {place}"])
        )
    sentence = f"{what(event)}{tail}."
    if rng.random() < 0.1:
        sentence += " " + rng.choice(REMARKS).format(other=other, place=place)
    return sentence


def what(event: Event) -> str:
    """Name the change: its verb and its number."""
    return event.verb if event.sign == "*" else f"{event.verb} {event.number}"


def work_line(rng: random.Random, event: Event, name: str, who: str, thing: str) -> str:
    """Write one change as a line of working."""
    written = f"{event.before}{event.sign}{event.number}={event.after}"
    ends = [
        f": {written}.",
        f", so {written}.",
        f" and then {who} has {written} {thing}.",
        f", now {name} has {written} {thing}.",
    ]
    return what(event) + rng.choice(ends)


def tool_line(rng: random.Random, event: Event, name: str, who: str) -> str:
    """Write one change as a calculator call, its result, and the new amount."""
    call = f"{CALL}{event.before}{event.sign}{event.number}{CALL_END}"
    result = f"{RESULT}{event.after}{RESULT_END}"
    return f"{what(event)}: {call}{result} so {rng.choice([name, who])} has {event.after}."


def label(sentences: list[str]) -> list[str]:
    """Put a letter before each sentence."""
    return [f"{letter} {text}" for letter, text in zip(LETTERS, sentences, strict=False)]


def solve(
    rng: random.Random, mode: str, start: int, events: list, name: str, who: str, thing: str
) -> str:
    """Write the whole response of a mode, the answer last."""
    lines = []
    if mode == "brief":
        lines = [f"{e.before}{e.sign}{e.number}={e.after}." for e in events]
    elif mode == "tool":
        lines = [tool_line(rng, e, name, who) for e in events]
    else:
        lines = [work_line(rng, e, name, who, thing) for e in events]
    if mode != "brief":
        lines = label(lines)
    if mode == "full":
        lines.insert(0, rng.choice([f"{name} starts with {start}.", f"At first {start} {thing}."]))
    return " ".join([*lines, f"Answer: {events[-1].after}"])


def draw_operations(rng: random.Random, mode: str, limit: int) -> int:
    """Draw the number of operations, skewed to short problems with a long tail."""
    top = min(limit, {"tool": MAX_TOOL_OPS, "brief": MAX_BRIEF_OPS}.get(mode, MAX_OPS))
    power = 1.7 if mode == "full" else 1.0
    return 1 + int(top * rng.random() ** power)


def draw_problem(rng: random.Random, modes: dict[str, float], limit: int = MAX_OPS) -> Problem:
    """Draw one problem; modes gives the weight of each response format."""
    mode = rng.choices(list(modes), list(modes.values()))[0]
    female = rng.random() < 0.5
    name, who = rng.choice(WOMEN if female else MEN), "she" if female else "he"
    thing, amount = rng.choice(THINGS), rng.randint(5, 60)
    start, events = amount, []
    for _ in range(draw_operations(rng, mode, limit)):
        events.append(draw_event(rng, amount))
        amount = events[-1].after
    story = [f"{name} has {start} {thing}. {rng.choice(LINKS)} {rng.choice([name, who])}:"]
    story += label([tell_event(rng, event, thing) for event in events])
    story.append(f"How many {thing} does {name} have? {ASK[mode]}")
    prompt = f"{USER}{' '.join(story)}{ASSISTANT}"
    solution = solve(rng, mode, start, events, name, who, thing)
    return Problem(mode, len(events), prompt, solution, amount)
