"""The numbers that the paper prints, and nothing that it does not."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Published:
    """One printed score; the paper gives a deviation for QDQ only."""

    score: float
    std: float | None
    data: str  # the version of the datasets it was measured on
    seeds: int

    def __str__(self) -> str:
        return f"{self.score:g}" if self.std is None else f"{self.score:g} ± {self.std:g}"


@cache
def content() -> dict[str, Any]:
    """The whole file published.json."""
    return json.loads(files("qdq.report").joinpath("published.json").read_text(encoding="utf-8"))


def score(task: str | None, method: str) -> Published | None:
    """What the paper prints for a task and a method, such as ("hopper-medium", "TD3+BC")."""
    for table in content()["scores"].values():
        if task in table["rows"] and method in table["methods"]:
            value = table["rows"][task][table["methods"].index(method)]
            std = table["std"][task] if method == "QDQ" else None
            return Published(value, std, table["data"], table["seeds"])
    return None
