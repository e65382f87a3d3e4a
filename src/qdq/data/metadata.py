"""A dataset's metadata as JSON, so that every file format can carry it; nothing read is trusted."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from qdq.data.episodes import Metadata
from qdq.data.references import Reference
from qdq.errors import DataError
from qdq.storage import parse_json

MAXIMUM_CHARACTERS = 2**20  # no description of a dataset is longer than a megabyte


def metadata_to_json(metadata: Metadata) -> str:
    """Everything in `metadata` except the reader it came from, as JSON text."""
    reference = metadata.reference
    return json.dumps(
        {
            "name": metadata.name,
            "environment_id": metadata.environment_id,
            "environment_options": metadata.environment_options,
            "task": metadata.task,
            "reference": reference
            and {"random": reference.random, "expert": reference.expert, "origin": reference.origin},
            "details": metadata.details,
        },
        default=_plain,
    )


def metadata_from_json(text: Any, path: Path, source: str) -> Metadata:
    """Metadata written by `metadata_to_json`, or one sentence about what is wrong with it."""
    try:
        if not isinstance(text, str) or len(text) > MAXIMUM_CHARACTERS:
            raise ValueError("it is not a text of reasonable length")
        content = parse_json(text)
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
        values = {
            "name": _typed(content, "name", str) or Path(path).stem,
            "environment_id": _typed(content, "environment_id", str),
            "environment_options": _typed(content, "environment_options", dict) or {},
            "task": _typed(content, "task", str),
            "details": _typed(content, "details", dict) or {},
        }
        reference = _typed(content, "reference", dict)
        if reference is not None:
            random, expert = float(reference["random"]), float(reference["expert"])
            if not np.isfinite([random, expert]).all() or random == expert:
                raise ValueError("its reference returns are not two different numbers")
            values["reference"] = Reference(random, expert, str(reference["origin"]))
        return Metadata(source=source, **values)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"{path} has unusable metadata ({error}); write the file again.") from error


def _typed(content: dict[str, Any], key: str, kind: type) -> Any:
    value = content.get(key)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{key} is not of type {kind.__name__}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")
