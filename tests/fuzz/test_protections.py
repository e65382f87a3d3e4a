"""Each protection against hostile files on its own: every test here fails where its protection is taken away."""

import csv
import io
import json
import pickle
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdq import storage
from qdq.data import hdf5, mapped, tables
from qdq.data.d4rl import read_d4rl
from qdq.data.download import cached_path
from qdq.data.episodes import Metadata
from qdq.data.load import load_dataset, write_dataset
from qdq.data.minari_format import minari_path
from qdq.data.npz import read_npz
from qdq.errors import DataError, QDQError, UsageError
from qdq.online.snapshots import load_snapshots
from tests.fuzz.children import ROOT, Child
from tests.fuzz.readers import READERS, dataset, rows


class Harmful:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


# No code from files


def test_no_source_line_can_execute_what_a_file_says() -> None:
    forbidden = re.compile(
        r"\b(?:pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve|jsonpickle)\b(?!=)(?!d\b)|(?<![.\w])(?:eval|exec)\("
        r"|yaml\.(?:unsafe_|full_)?load\(|allow_pickle\s*=\s*True|np\.load\(|numpy\.load\(|tarfile|extractall|torch\.load"
        r"|__import__\("
    )
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = line.split("#")[0]
            if forbidden.search(code) and not code.strip().startswith(('"""', "'")):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
    for line in ("pickle.loads(x)", "eval(text)", "np.load(path)", "yaml.load(file)", "import dill", "exec(code)"):
        assert forbidden.search(line), line


def test_pickles_in_archives_and_mapped_columns_are_never_loaded(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    harm = np.array([Harmful(trace)] * 9, dtype=object)
    np.savez(tmp_path / "harm.npz", **{**rows(), "rewards": harm})  # type: ignore[arg-type]
    with pytest.raises(DataError, match="never loaded"):
        read_npz(tmp_path / "harm.npz")
    mapped.write_mapped(dataset(), tmp_path / "mapped")
    for content in (harm, None):
        path = tmp_path / "mapped" / "rewards.npy"
        path.unlink()
        if content is None:
            path.write_bytes(pickle.dumps(Harmful(trace)))
        else:
            np.save(path, content)
        with pytest.raises(DataError):
            load_dataset(tmp_path / "mapped")
    with zipfile.ZipFile(tmp_path / "mapped" / "rewards.npy", "w") as archive:  # an archive in the place of an array
        archive.writestr("rewards.npy", b"")
    with pytest.raises(DataError):
        load_dataset(tmp_path / "mapped")
    assert not trace.exists()


def test_the_environment_of_a_file_imports_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qdq.evaluation.rollout import make_environment
    from qdq.online.acting import make_environment as make_online_environment

    (tmp_path / "canary.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="names a module"):
        make_environment(Metadata(environment_id="canary:Bird-v0"))
    with pytest.raises(UsageError, match="names a module"):
        make_online_environment("canary:Bird-v0")
    assert not (tmp_path / "executed").exists()
    assert "canary" not in sys.modules


def test_options_from_a_file_that_an_environment_does_not_take_are_named() -> None:
    from qdq.evaluation.rollout import make_environment

    with pytest.raises(UsageError, match="cannot be made"):
        make_environment(Metadata(environment_id="Pendulum-v1", environment_options={"nonsense": 1}))


# Names stay where they belong


@pytest.mark.parametrize(
    "name", ["../../escape.npy", "/etc/escape.npy", "a/../../escape.npy", "..\\escape.npy", "C:/x.npy"]
)
def test_members_that_point_out_of_an_archive_are_refused(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "names.npz", **rows())  # type: ignore[arg-type]
    read_npz(tmp_path / "names.npz")
    with zipfile.ZipFile(tmp_path / "names.npz", "a") as archive:
        archive.writestr(name, b"")
    with pytest.raises(DataError, match="points out of the archive"):
        read_npz(tmp_path / "names.npz")


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "twice.npz", **rows())  # type: ignore[arg-type]
    content = (tmp_path / "twice.npz").read_bytes()
    (tmp_path / "twice.npz").write_bytes(content.replace(b"truncations.npy", b"terminals.npy\0\0"))
    with pytest.raises(DataError, match="points out of the archive"):  # a name that ends early
        read_npz(tmp_path / "twice.npz")
    (tmp_path / "twice.npz").write_bytes(content.replace(b"rewards.npy", b"actions.npy"))
    with pytest.raises(DataError, match="two members"):
        read_npz(tmp_path / "twice.npz")


@pytest.mark.parametrize("name", ["../x-v0", "/etc/x-v0", "a/../../x-v0", "..", "", ".", "a\0b", "~/x-v0"])
def test_names_cannot_leave_their_folders(name: str, tmp_path: Path) -> None:
    import qdq

    for refused in (
        lambda: minari_path(name),
        lambda: load_dataset(f"minari:{name}"),
        lambda: cached_path(name),
        lambda: load_dataset(f"d4rl:{name}"),
        lambda: load_snapshots(name),
        lambda: qdq.train(dataset(), "bc", name=name, out=tmp_path) if name else minari_path(name),
    ):
        with pytest.raises(QDQError):
            refused()
    assert list(tmp_path.iterdir()) == []


@given(st.text())
def test_any_text_becomes_a_plain_file_name(text: str) -> None:
    name = storage.slug(text)
    assert Path(name).name == name
    assert not name.startswith(".")
    assert "\0" not in name


def _link(target: Any) -> Callable[[h5py.File], None]:
    def put(file: h5py.File) -> None:
        file["rewards"] = target

    return put


def _external(file: h5py.File) -> None:
    file.create_dataset("rewards", (9,), "f4", external=[("secret.bin", 0, 36)])


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(9,), dtype="f4")
    layout[:] = h5py.VirtualSource("secret.hdf5", "rewards", shape=(9,))
    file.create_virtual_dataset("rewards", layout)


@pytest.mark.parametrize(
    "put",
    [_link(h5py.ExternalLink("secret.hdf5", "/rewards")), _link(h5py.SoftLink("/elsewhere")), _external, _virtual],
)
def test_no_other_file_is_read_through_an_hdf5_file(
    tmp_path: Path, put: Callable[[h5py.File], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    secret = rows()["rewards"]
    (tmp_path / "secret.bin").write_bytes(secret.tobytes())
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["rewards"] = secret
    with h5py.File(tmp_path / "open.hdf5", "w") as file:
        for key, value in rows().items():
            if key != "rewards":
                file["timeouts" if key == "truncations" else key] = value
        file["elsewhere"] = secret
        put(file)
        assert np.array_equal(file["rewards"][()], secret)  # type: ignore[index]  # HDF5 itself would read it
    with pytest.raises(DataError, match=r"link to elsewhere|in another file"):
        read_d4rl(tmp_path / "open.hdf5")


# Sizes


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A process with two gibibytes to spare."""
    started = Child(tmp_path_factory.mktemp("child") / "log")
    yield started
    started.close()


def _npy(shape: tuple[int, ...], body: bytes, kind: str = "<f4") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": kind, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + body


def _zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _npz_header(folder: Path) -> None:
    (folder / "data.npz").write_bytes(_zipped({f"{key}.npy": _npy((2**45,), bytes(64)) for key in rows()}))


def _npz_bomb(folder: Path) -> None:
    count = 2**25  # 128 MiB of zeros for each column, a thousandth of that in the file
    empty = {"observations": (count, 1), "actions": (count, 1), "rewards": (count,)}
    members = {f"{key}.npy": _npy(shape, bytes(4 * count)) for key, shape in empty.items()}
    (folder / "data.npz").write_bytes(_zipped({**members, "terminals.npy": _npy((count,), bytes(count), "|b1")}))


def _npz_small_bomb(folder: Path) -> None:
    content = {f"{key}.npy": _npy(value.shape, value.tobytes(), value.dtype.str) for key, value in rows().items()}
    (folder / "data.npz").write_bytes(_zipped({**content, "action_low.npy": _npy((2**26,), bytes(2**28))}))


def _hdf5_header(folder: Path) -> None:
    with h5py.File(folder / "data.hdf5", "w") as file:
        for key, value in rows().items():
            file.create_dataset(key, (2**45, *value.shape[1:]), value.dtype, chunks=(2**10, *value.shape[1:]))


def _hdf5_bomb(folder: Path) -> None:
    zeros = zlib.compress(bytes(4 * 2**22))
    with h5py.File(folder / "data.hdf5", "w") as file:
        for key in ("observations", "actions", "rewards", "terminals"):
            stored = file.create_dataset(key, (2**25,), "f4", chunks=(2**22,), compression="gzip")
            for start in range(0, 2**25, 2**22):
                stored.id.write_direct_chunk((start,), zeros)


def _mapped_header(folder: Path) -> None:
    (folder / "mapped" / "rewards.npy").write_bytes(_npy((2**45,), bytes(36)))


def _tree_header(folder: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2**45], "data_offsets": [0, 2**47]}}).encode()
    (folder / "tree.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))


def _tree_length(folder: Path) -> None:
    (folder / "tree.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")


def _parquet_bomb(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    names = ["observation_0", "action_0", "reward", "terminal"]
    column = pyarrow.array(np.zeros(2**22, np.float32))
    table = pyarrow.Table.from_arrays([column] * 4, names)
    with pyarrow.parquet.ParquetWriter(folder / "data.parquet", table.schema, compression="zstd") as writer:
        for _ in range(5):
            writer.write_table(table)


def _run_size(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "observation_size": 2**31 - 1}))


@pytest.mark.parametrize(
    ("reader", "put"),
    [
        ("npz", _npz_header),
        ("npz", _npz_bomb),
        ("npz", _npz_small_bomb),
        ("d4rl", _hdf5_header),
        ("d4rl", _hdf5_bomb),
        ("mapped", _mapped_header),
        ("arrays", _tree_header),
        ("arrays", _tree_length),
        ("parquet", _parquet_bomb),
        ("run", _run_size),
    ],
)
def test_a_small_file_never_takes_much_memory(
    reader: str, put: Callable[[Path], None], child: Child, tmp_path: Path
) -> None:
    for name in ("sound", "hostile"):
        (tmp_path / name).mkdir()
        READERS[reader].make(tmp_path / name)
    assert child.prepare(reader, tmp_path / "sound")["outcome"] == "read"
    put(tmp_path / "hostile")
    answer = child.ask(reader, tmp_path / "hostile")
    assert answer["outcome"] == "refused", answer
    assert answer["kibibytes"] < 100 * 1024, answer
    assert "more memory than there is" not in answer["detail"]  # refused before it was tried


# Time


@pytest.mark.parametrize("place", [24, 48])
def test_a_file_that_keeps_the_hdf5_library_busy_for_ever_is_refused(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "SECONDS", 1)
    with h5py.File(tmp_path / "sound.hdf5", "w") as file:
        for key, value in rows().items():
            file["timeouts" if key == "truncations" else key] = value
        file.attrs["env_id"] = "Walk-v0"
    content = bytearray((tmp_path / "sound.hdf5").read_bytes())
    heap = content.index(b"GCOL")
    content[heap + place : heap + place + 8] = bytes(8)  # an object of no size, after which the library finds itself
    (tmp_path / "loop.hdf5").write_bytes(content)
    with pytest.raises(DataError, match="busy without end"):
        read_d4rl(tmp_path / "loop.hdf5")
    assert read_d4rl(tmp_path / "sound.hdf5").metadata.environment_id == "Walk-v0"  # with a new process


def test_a_crash_of_the_process_that_looks_first_refuses_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "sound.hdf5", "w") as file:
        for key, value in rows().items():
            file["timeouts" if key == "truncations" else key] = value
    script = tmp_path / "crash.py"
    script.write_text("import os, sys\nsys.stdin.readline()\nos.abort()\n")
    first_look = hdf5.FirstLook(script)
    monkeypatch.setattr(hdf5, "_FIRST_LOOK", first_look)
    with pytest.raises(DataError, match="crashes the HDF5 library"):
        read_d4rl(tmp_path / "sound.hdf5")
    first_look.close()


def test_a_lonely_quote_is_looked_for_once(tmp_path: Path) -> None:
    class Line(str):
        counted = 0

        def count(self, *arguments: Any) -> int:  # type: ignore[override]
            Line.counted += 1
            return super().count(*arguments)

    class File:
        def __init__(self) -> None:
            self.lines = iter([Line('1,"2\n'), *(Line("1,2\n") for _ in range(2000))])

        def __iter__(self) -> Iterator[Line]:
            return self.lines

        def readline(self) -> str:
            return next(self.lines, "")

    assert len(tables._lines(File(), 100)) == 2001  # type: ignore[arg-type]
    assert Line.counted <= 2001


# JSON


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 100 + "]" * 100, '{"a":' * 100_000, "9" * 5000, '"\\ud800"', '{"\\udfff": 1}', "\xff"]
)
def test_hostile_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin1"))
    with pytest.raises(DataError, match=r"x\.json is not readable JSON"):
        storage.read_json(tmp_path / "x.json")


def test_json_of_implausible_length_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "x.json", "wb") as file:
        file.truncate(2**40)  # holds nothing, takes no room
    with pytest.raises(DataError, match="implausibly long"):
        storage.read_json(tmp_path / "x.json")


def test_damaged_logs_of_a_run_are_named(tmp_path: Path) -> None:
    from qdq.report.runs import read_metrics

    (tmp_path / "metrics.csv").write_text("step,loss\n" + "1" * (csv.field_size_limit() + 1) + "\n")
    with pytest.raises(DataError, match=r"metrics\.csv"):
        read_metrics(tmp_path / "metrics.csv")


@pytest.mark.parametrize("kind", ["npz", "hdf5", "csv", "parquet"])
def test_data_larger_than_the_machine_is_refused_before_it_is_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"data.{kind}"
    write_dataset(dataset(), str(path))
    assert load_dataset(str(path)).transitions > 0
    monkeypatch.setattr("qdq.data.guard.physical_memory", lambda: 100)
    with pytest.raises(DataError, match=r"claims .* GiB, more than the .* GiB of memory; .* --memory"):
        load_dataset(str(path))


def test_more_than_deflate_can_unfold_is_refused(tmp_path: Path) -> None:
    """Two filters, one after the other, shrink eight megabytes to a few dozen bytes: no bomb yet, but no data either."""
    path = tmp_path / "data.hdf5"
    write_dataset(dataset(), str(path))
    with h5py.File(path, "a") as file:
        del file["rewards"]
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((10**6,))
        properties.set_deflate(9)
        properties.set_deflate(9)
        space = h5py.h5s.create_simple((10**6,))
        h5py.Dataset(h5py.h5d.create(file.id, b"rewards", h5py.h5t.NATIVE_DOUBLE, space, properties))[:] = 0.0
    with pytest.raises(DataError, match=r"rewards claims 8000000 bytes, but only \d+ are stored"):
        read_d4rl(path)
