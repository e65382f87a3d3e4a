"""Amounts of memory: how a person writes them, and how much this machine has."""

import os
import re

from qdq.errors import UsageError

UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_memory(amount: str | int) -> int:
    """The bytes that 2GiB, 500MB or a plain number of bytes stand for."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(amount).lower())
    if match is None or match.group(2) not in UNITS:
        raise UsageError(
            f"A memory budget of {str(amount)!r} is not understood; write it like 2GiB, 500MB or in bytes."
        )
    size = int(float(match.group(1)) * UNITS[match.group(2)])
    if size < 1:
        raise UsageError("A memory budget must be larger than nothing; write it like 2GiB, 500MB or in bytes.")
    return size


def describe_memory(size: int | float) -> str:
    """Bytes as a short text, such as 1.5 GiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"


def physical_memory() -> int:
    """The bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
