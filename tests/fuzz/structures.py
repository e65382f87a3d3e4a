"""Files that are sound as containers and hostile inside, where changed bytes rarely get past a checksum."""

import io
import json
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st

from tests.fuzz.damage import VALUES, edits, one_of_these, to_text
from tests.fuzz.readers import rows

Files = st.SearchStrategy[dict[str, bytes]]

TYPES = ["<f8", ">f4", "<f2", "<i8", "<u1", ">i2", "?", "S4", "V8", "<c8", [("x", "<f4"), ("y", "<i4")], "<f4"]
SHAPES = [(), (0,), (1,), (9,), (9, 1), (9, 2), (10, 2), (9, 0), (0, 2), (3, 3, 1), (9, 1, 1, 1), (1, 9)]


def wrong_arrays(keys: list[str]) -> st.SearchStrategy[dict[str, np.ndarray]]:
    """Sound columns, some of them of another type or shape, or with values that are no numbers."""
    values = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, np.nan, np.inf, -np.inf, 1e38, 1e-45])

    def change(columns: dict[str, np.ndarray], key: str, kind: Any, shape: tuple[int, ...], value: float) -> dict:
        with np.errstate(all="ignore"):
            array = np.zeros(shape, kind) if np.dtype(kind).kind in "SV" else np.full(shape, value).astype(kind)
        return {**columns, key: array}

    changes = st.lists(
        st.tuples(st.sampled_from(keys), st.sampled_from(TYPES), st.sampled_from(SHAPES), values),
        min_size=0,
        max_size=3,
    )

    def build(drawn: list[Any]) -> dict[str, np.ndarray]:
        columns = {key: value for key, value in _columns().items() if key in keys}
        for key, kind, shape, value in drawn:
            columns = change(columns, key, kind, shape, value)
        return columns

    return changes.map(build)


def _columns() -> dict[str, np.ndarray]:
    columns = rows()
    return {
        **columns,
        "timeouts": columns["truncations"],
        "action_low": np.array([-1], np.float32),
        "action_high": np.array([1], np.float32),
    }


# HDF5


def _group(file: Any, key: str) -> None:
    file.create_group(key)["inner"] = np.zeros(3)


def _virtual(file: Any, key: str) -> None:
    layout = h5py.VirtualLayout(shape=(9,), dtype="<f4")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", shape=(9,))
    file.create_virtual_dataset(key, layout)


def _link(target: Any) -> Callable[[Any, str], None]:
    def put(file: Any, key: str) -> None:
        file[key] = target

    return put


def _dataset(*arguments: Any, **options: Any) -> Callable[[Any, str], None]:
    def put(file: Any, key: str) -> None:
        file.create_dataset(key, *arguments, **options)

    return put


def _references(file: Any, key: str) -> None:
    file[key] = np.array([file.ref] * 9, h5py.ref_dtype)


def _loop(file: Any, key: str) -> None:
    file[key] = file["/"]  # a hard link of a group to itself


HDF5_MEMBERS: list[Callable[[Any, str], None]] = [
    _group,
    _virtual,
    _references,
    _loop,
    _link(h5py.SoftLink("/rewards")),
    _link(h5py.SoftLink("/absent")),
    _link(h5py.ExternalLink("/etc/hostname", "/")),
    _link(h5py.ExternalLink("data.hdf5", "/rewards")),
    _link(np.dtype("<f4")),
    _link(h5py.Empty("<f4")),
    _dataset((9,), "<f4", external=[("/etc/hostname", 0, 36)]),
    _dataset((2**50,), "<f4", chunks=(2**10,)),
    _dataset((2**50, 2**10), "<f4", chunks=(1, 2**10)),
    _dataset((9,), "<f4", chunks=(2**27,), maxshape=(None,)),
    _dataset((9,), "<f4", chunks=(9,), fillvalue=np.nan),
    _dataset((9,), h5py.string_dtype()),
    _dataset((9,), h5py.vlen_dtype(np.float32)),
    _dataset((9,), h5py.enum_dtype({"no": 0, "yes": 1}, "i1"), data=np.ones(9, "i1")),
    _dataset((9,), h5py.opaque_dtype(np.dtype("<M8[s]"))),
    _dataset((9,), np.dtype(("<f4", (2,)))),
    _dataset(data=np.ones((9, 1)), compression="lzf", shuffle=True, fletcher32=True),
    _dataset(data=np.arange(9), scaleoffset=0, chunks=(3,)),
    _dataset(data=np.zeros(10**6, "u1"), compression="gzip", compression_opts=9),
]
ATTRIBUTES: list[Any] = [
    *("Hopper-v4", "AntMaze_UMaze-v4", "os:Escape-v0", "", "[" * 100_000, "[1, 2", "x" * 60_000, b"\xff\xfe", "٣"),
    *(
        0,
        -1,
        2**63,
        1e308,
        np.nan,
        np.inf,
        True,
        np.zeros(0),
        np.zeros((2, 2)),
        np.array([b"a", b"b"]),
        h5py.Empty("f4"),
    ),
]


def hdf5(name: str, sound: dict[str, bytes]) -> Files:
    """A D4RL file with hostile members, types, shapes and attributes, or with bytes changed on top of that."""
    del sound
    keys = ["observations", "actions", "rewards", "terminals", "timeouts", "next_observations"]
    members = st.dictionaries(st.sampled_from([*keys, "metadata"]), one_of_these(HDF5_MEMBERS), max_size=2)
    words = st.sampled_from(["env_id", "reference_min_return", "reference_max_return", "other"])
    attributes = st.dictionaries(words, one_of_these(ATTRIBUTES), max_size=3)

    def build(columns: dict, members: dict, attributes: dict, missing: set, ours: Any, latest: bool) -> bytes:
        def fill(file: Any) -> None:
            for key, array in columns.items():
                if key not in members and key not in missing:
                    file[key] = array
            for key, put in members.items():
                put(file, key)
            for key, value in attributes.items():
                file.attrs[key] = value
            if "metadata" not in members and ours is not None:
                group = file.create_group("metadata")
                group["action_low"], group["action_high"] = np.array([-1], np.float32), np.array([1], np.float32)
                group["qdq"] = np.frombuffer(to_text(ours), np.uint8)

        return _hdf5(fill, latest)

    missing = st.sets(st.sampled_from(keys), max_size=2)
    ours = st.one_of(st.none(), descriptions())
    built = st.builds(build, wrong_arrays(keys), members, attributes, missing, ours, st.booleans())
    return _touched(built).map(lambda content: {name: content})


def minari(name: str, sound: dict[str, bytes]) -> Files:
    """A Minari folder whose episodes have hostile members."""
    del name
    main, header = (next(key for key in sound if key.endswith(ending)) for ending in (".hdf5", ".json"))
    keys = ["observations", "actions", "rewards", "terminations", "truncations"]
    members = st.dictionaries(st.sampled_from([*keys, "episode_1"]), one_of_these(HDF5_MEMBERS), max_size=2)
    shapes = st.dictionaries(st.sampled_from(keys), st.sampled_from(SHAPES), max_size=2)
    wanted = {"observations": (4, 2), "actions": (3, 1), "rewards": (3,), "terminations": (3,), "truncations": (3,)}

    def build(members: dict, shapes: dict, kind: Any, count: int, dictionary: bool) -> dict[str, bytes]:
        def fill(file: Any) -> None:
            for number in range(count):
                if number == 1 and "episode_1" in members:
                    members["episode_1"](file, "episode_1")
                    continue
                group = file.create_group(f"episode_{number}")
                for key in keys:
                    shape = shapes.get(key, wanted[key]) if number == 0 else wanted[key]
                    if number == 0 and key in members:
                        members[key](group, key)
                    elif key == "observations" and dictionary:
                        group.create_group(key)["observation"] = np.zeros(shape, "f4")
                    else:
                        group[key] = np.zeros(shape, kind if number == 0 else "f4")

        content = json.loads(sound[header]) | {"total_episodes": count, "total_steps": 3 * count}
        if dictionary:
            inner = json.loads(content["observation_space"])
            content["observation_space"] = json.dumps({"type": "Dict", "subspaces": {"observation": inner}})
        return {main: _hdf5(fill, False), header: json.dumps(content).encode()}

    return st.builds(build, members, shapes, st.sampled_from(TYPES), st.integers(0, 3), st.booleans())


def _hdf5(fill: Callable[[Any], None], latest: bool) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="latest" if latest else None) as file:
        fill(file)
    return buffer.getvalue()


# NPZ


def npz(name: str, sound: dict[str, bytes]) -> Files:
    """An archive whose members have hostile names, headers, types and sizes, all with true checksums."""
    del sound
    keys = [*_columns(), "metadata"]
    odd = [
        "../../escape.npy",
        "/etc/escape.npy",
        "rewards",
        "rewards.npy.npy",
        "REWARDS.npy",
        "a/rewards.npy",
        "",
        "\x00.npy",
    ]
    names = st.sampled_from([*(f"{key}.npy" for key in keys), *odd])
    kinds = st.sampled_from(
        ["<f4", "<f8", "|O", "|V0", "|S1", "<U0", "<U5", "|b1", "<c8", "<M8[s]", "[('x','<f4')]", "nonsense"]
    )
    shapes = st.sampled_from(
        [
            "(9,)",
            "(9, 1)",
            "(9, 2)",
            "()",
            "(0,)",
            "(-1,)",
            "(9.5,)",
            "(True,)",
            "(2**70,)",
            f"({2**62}, 4)",
            f"({10**15},)",
            "(9, 0)",
        ]
    )
    templates = one_of_these(
        [
            "{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': {shape}, }}",
            "{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': {shape}, 'more': 1}}",
            "{{'descr': '{kind}', 'shape': {shape}}}",
            "__import__('os').system('true')",
            "{{'descr': " + "(" * 150 + ")" * 150 + ", 'fortran_order': False, 'shape': (9,)}}",
            "-" * 9000,
            "",
        ]
    )
    lengths = st.sampled_from([0, 1, 9, 36, 72, 10**6])
    version = st.sampled_from([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x09"])

    def header(template: str, kind: str, fortran: bool, shape: str, length: int, version: bytes) -> bytes:
        text = (template.format(kind=kind, fortran=fortran, shape=shape) + "\n").encode("latin1")
        size = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
        return b"\x93NUMPY" + version + size + text + bytes(length)

    bodies = st.one_of(
        st.builds(header, templates, kinds, st.booleans(), shapes, lengths, version),
        st.binary(max_size=200),
        st.just(b""),
    )
    members = st.lists(st.tuples(names, bodies), max_size=3)
    method = st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])

    def build(columns: dict, ours: Any, members: list, method: int, fortran: bool) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two members of one name are what is wanted here
            replaced = {name for name, _ in members}
            for key, array in {**columns, "metadata": np.array(to_text(ours).decode(errors="replace"))}.items():
                if f"{key}.npy" not in replaced:
                    content = io.BytesIO()
                    np.lib.format.write_array(content, np.asfortranarray(array) if fortran else array)
                    archive.writestr(f"{key}.npy", content.getvalue())
            for key, body in members:
                information = zipfile.ZipInfo("placeholder")
                information.filename, information.compress_type = key, method
                archive.writestr(information, body)
        return buffer.getvalue()

    usual = [key for key in _columns() if key != "timeouts"]
    arrays = wrong_arrays(usual)
    built = st.builds(build, arrays, descriptions(), members, method, st.booleans())
    return _touched(built).map(lambda content: {name: content})


# Tables


def parquet(name: str, sound: dict[str, bytes]) -> Files:
    """A table with columns of other types, missing values, and hostile texts in its schema."""
    import pyarrow
    import pyarrow.parquet

    del sound
    keys = [
        "observation_0",
        "observation_1",
        "action_0",
        "reward",
        "terminal",
        "truncated",
        "episode",
        "next_observation_0",
    ]
    usual: dict[str, list[Any]] = {key: [0.5, -0.5, 0.25, 0.0] for key in keys[:4]}
    usual |= {"terminal": [False, True, False, True], "episode": [0, 0, 1, 1]}
    columns = [
        *([1, None, 2, 3], ["a", "b", "c", "d"], [True, None, False, True], [[1.0], [], [2.0], None], [{"x": 1}] * 4),
        *(
            [float("nan"), 1.0, 2.0, 3.0],
            [b"\xff"] * 4,
            [2**63 - 1, 0, 1, 2],
            [None] * 4,
            [1e39, 1.0, 2.0, 3.0],
            [2, 2, 2, 2],
        ),
        *(np.zeros(4, "f2"), np.array([1, 2, 3, 4], "M8[s]"), np.array([1, 2, 3, 4], "u8"), ["1", "1", "2", "1"]),
    ]
    texts = st.one_of(st.none(), descriptions().map(to_text))
    meanings = st.one_of(st.none(), one_of_these(TOML_TEXTS).map(str.encode))

    def build(changes: dict, missing: set, ours: Any, meaning: Any, rows: int, double: bool, compression: str) -> bytes:
        table = {key: value[:rows] for key, value in {**usual, **changes}.items() if key not in missing}
        arrays, names = [pyarrow.array(value) for value in table.values()], list(table)
        if double and names:
            arrays, names = [*arrays, arrays[0]], [*names, names[0]]
        metadata = {key: value for key, value in (("qdq", ours), ("qdq_columns", meaning)) if value is not None}
        buffer = io.BytesIO()
        content = pyarrow.Table.from_arrays(arrays, names).replace_schema_metadata(metadata)
        pyarrow.parquet.write_table(content, buffer, compression=compression)
        return buffer.getvalue()

    built = st.builds(
        build,
        st.dictionaries(st.sampled_from(keys), one_of_these(columns), max_size=2),
        st.sets(st.sampled_from(keys), max_size=1),
        texts,
        meanings,
        st.sampled_from([4, 4, 4, 1, 0]),
        st.booleans(),
        st.sampled_from(["snappy", "none", "gzip", "zstd"]),
    )
    return _touched(built).map(lambda content: {name: content})


TOML_VALUES = [
    *(
        '""',
        '"x"',
        '"reward"',
        '"action_0"',
        '["x"]',
        "[]",
        "[[]]",
        "{}",
        "{a = 1}",
        "1",
        "-1",
        "0.5",
        "nan",
        "inf",
        "1e308",
        "1e999",
    ),
    *(
        "9" * 400,
        "9" * 5000,
        "0x7fffffffffffffffffff",
        "true",
        "1979-05-27",
        "00:00:01",
        "[1, 2]",
        "[nan]",
        '["x", 1]',
        "[true]",
    ),
    *('"' + "y" * 100_000 + '"', "[" * 500 + "]" * 500, "[" * 50_000, '"""\n"""', "'", '"\\ud800"', '"../../escape"'),
    *(
        '"observation_0"',
        '["observation_0", "observation_0"]',
        '["reward", "episode"]',
        '["action_0"]',
        "[9" + "9" * 400 + "]",
    ),
]
TOML_KEYS = {
    "columns": ["observations", "actions", "reward", "terminal", "truncated", "episode", "next_observations", "more"],
    "environment": ["id", "action_low", "action_high", "more"],
    "reference": ["random", "expert", "more"],
}
TOML_TEXTS = [
    '[columns]\nobservations = ["observation_0"]\nactions = ["action_0"]\nreward = "reward"\nterminal = "terminal"\n',
    '[columns]\nobservations = []\nactions = []\nreward = "reward"\nterminal = "reward"\n',
    '[columns]\nobservations = ["terminal"]\nactions = ["terminal"]\nreward = "terminal"\nepisode = "terminal"\n',
    "[" * 5000,
    "columns = 5",
    "",
]


def toml(name: str, sound: dict[str, bytes]) -> Files:
    """Column files with values of every type for every key."""
    del sound
    sections = {
        section: st.dictionaries(st.sampled_from(keys), one_of_these(TOML_VALUES), max_size=3)
        for section, keys in TOML_KEYS.items()
    }
    defaults = {
        "columns": {
            "observations": '["observation_0"]',
            "actions": '["action_0"]',
            "reward": '"reward"',
            "terminal": '"terminal"',
        }
    }

    def build(drawn: dict[str, dict[str, str]]) -> dict[str, bytes]:
        lines = []
        for section, values in drawn.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {value}" for key, value in {**defaults.get(section, {}), **values}.items()]
        return {name: "\n".join(lines).encode()}

    return st.fixed_dictionaries(sections).map(build)


# What all of them share


def descriptions() -> st.SearchStrategy[Any]:
    """The metadata that qdq writes into its files, with other values."""
    value = one_of_these(VALUES)
    usual = {
        "name": "walk",
        "environment_id": None,
        "environment_options": {},
        "task": None,
        "reference": None,
        "details": {},
    }
    reference = {"random": 0.0, "expert": 1.0, "origin": "here"}
    return st.one_of(
        st.just(usual),
        st.dictionaries(st.sampled_from(list(usual)), value, min_size=1, max_size=2).map(lambda new: {**usual, **new}),
        st.dictionaries(st.sampled_from(list(reference)), value, min_size=1, max_size=2).map(
            lambda new: {**usual, "reference": {**reference, **new}}
        ),
        value,
    )


def _touched(built: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """As they are, or with a few bytes changed."""

    def apply(content: bytes, changes: list[Any]) -> bytes:
        for change in changes:
            content = change(content)
        return content

    return st.one_of(built, built, st.builds(apply, built, edits("bytes")))
