"""Settings: a dataclass field that carries its help text and the origin of its default; and what a seed may be."""

import dataclasses
import operator
from typing import Any

from qdq.errors import UsageError

PAPER_TABLE_3 = "paper, Table 3"
PAPER_TABLE_4 = "paper, Table 4"
OURS = "ours"
SEEDS = 2**32  # larger numbers are cut to this many by the random generator, so that two of them would be one seed


def setting(default: Any, text: str, source: str = OURS) -> Any:
    """A dataclass field with help text and the source of its default value."""
    return dataclasses.field(default=default, metadata={"help": text, "source": source})


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as nested plain values."""
    return {
        field.name: to_dict(value)
        if dataclasses.is_dataclass(value)
        else (list(value) if isinstance(value, tuple) else value)
        for field in dataclasses.fields(config)
        for value in [getattr(config, field.name)]
    }


def checked_seed(value: Any) -> int:
    """A seed as a whole number; anything else is refused, before anything is written."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < SEEDS:
        raise UsageError(f"A seed must be a whole number from 0 to {SEEDS - 1}, but is {value!r}.")
    return number
