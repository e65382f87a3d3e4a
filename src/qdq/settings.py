"""Settings: a dataclass field that carries its help text and the origin of its default."""

import dataclasses
from typing import Any

PAPER_TABLE_3 = "paper, Table 3"
PAPER_TABLE_4 = "paper, Table 4"
OURS = "ours"


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
