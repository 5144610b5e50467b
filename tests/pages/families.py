"""The families on the page of a sweep, as its script finds them."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from math import isnan

Attributes = dict[str, str]


class Family:
    """What stands in one `details.family`."""

    def __init__(self) -> None:
        self.view: list[float] = []
        self.markers = 0
        self.sliders: list[list[str]] = []
        self.configs: list[list[str]] = []
        self.heads = 0
        self.rows: list[Attributes] = []
        self.cells: list[list[str]] = []

    def dots(self) -> list[tuple[float, float]]:
        """Places of markers, where they are known."""
        result: list[tuple[float, float]] = []
        for row in self.rows:
            numbers = [float(item) for item in row["data-dots"].split(" ")]
            assert len(numbers) == 2 * self.markers
            result += zip(numbers[::2], numbers[1::2], strict=True)
        return [(x, y) for x, y in result if not (isnan(x) or isnan(y))]


class Families(HTMLParser):
    """Families by name, from the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, Family] = {}
        self.current: Family | None = None
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if given.get("class") == "family":
            self.current = Family()
            self.found[given["id"].removeprefix("family-")] = self.current
        if self.current is None:
            return
        if tag == "svg":
            self.current.view = [float(item) for item in given["viewbox"].split()]
        elif tag == "input":
            self.current.sliders.append(given["data-texts"].split(" "))
            assert int(given["max"]) == len(self.current.sliders[-1]) - 1
        elif "data-configs" in given:
            self.current.configs = json.loads(given["data-configs"])
        elif "data-at" in given:
            self.current.rows.append(given)
            self.current.cells.append([])
        else:
            self._small(tag, given, self.current)

    def _small(self, tag: str, given: Attributes, family: Family) -> None:
        family.markers += given.get("class") == "marker"
        family.heads += tag == "th"
        if tag == "td":
            family.cells[-1].append("")
        self.in_cell = tag == "td"

    def handle_endtag(self, tag: str) -> None:
        self.in_cell = self.in_cell and tag != "td"
        if tag == "section":
            self.current = None

    def handle_data(self, data: str) -> None:
        if self.in_cell and self.current is not None:
            self.current.cells[-1][-1] += data
