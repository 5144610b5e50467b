"""Events of mkdocs: generated pages, their navigation, tables at `<!-- table: NAME -->`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File, Files  # noqa: E402

from tools.docs.causes import cause_pages, with_causes  # noqa: E402
from tools.docs.figure import index_figure  # noqa: E402
from tools.docs.reference import reference_pages  # noqa: E402
from tools.docs.tables import TABLES  # noqa: E402
from tools.docs.trainers import trainer_pages, with_trainers  # noqa: E402

_PLACE = re.compile(r"^<!-- table: (.+?) -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Add the pages of causes and of trainers to the navigation."""
    config["nav"] = with_trainers(with_causes(config["nav"]))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages made from definitions, and the figure of the start page."""
    for path, text in {**reference_pages(), **cause_pages(), **trainer_pages()}.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "assets/three_tables.svg", content=index_figure(ROOT)))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Replace each `<!-- table: NAME -->` by its table."""
    return _PLACE.sub(lambda match: TABLES[match[1]](), markdown)
