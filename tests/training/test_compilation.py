"""Wide vectors are asked for where the processor has them and the user has not chosen."""

import os
from pathlib import Path

import pytest

from qdq.training.compilation import VECTOR_WIDTH, use_wide_vectors


@pytest.mark.parametrize(
    ("processor", "before", "after"),
    [
        ("flags : fpu avx2 avx512f avx512bw", "", f"{VECTOR_WIDTH}=512"),
        ("flags : fpu avx2 avx512f", "--xla_dump_to=x", f"{VECTOR_WIDTH}=512 --xla_dump_to=x"),
        ("flags : fpu avx2 avx512f", f"{VECTOR_WIDTH}=128", f"{VECTOR_WIDTH}=128"),
        ("flags : fpu avx2", "--xla_dump_to=x", "--xla_dump_to=x"),
        (None, "", ""),
    ],
)
def test_wide_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processor: str | None, before: str, after: str
) -> None:
    monkeypatch.setenv("XLA_FLAGS", before)
    if processor is not None:
        (tmp_path / "cpuinfo").write_text(processor)
    use_wide_vectors(tmp_path / "cpuinfo")
    assert os.environ["XLA_FLAGS"] == after
