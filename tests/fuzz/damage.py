"""Damage to the bytes of a file, as values that hypothesis can draw and shrink."""

import json
import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Edit = Callable[[bytes], bytes]

EXTREMES = [
    0,
    1,
    2,
    127,
    128,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
WORDS = [  # for files of text
    *(b"nan", b"-inf", b"1e999", b"1e-999", b"0x10", b"-0", b"1_0", b"9" * 400, b"9" * 5000, b"1" + b"0" * 30),
    *(b"null", b"true", b"[]", b"{}", b'""', b'"', b'"""', b"'", b"\\", b"\\u0000", b"\\ud800", b"\x00", b"\xff\xfe"),
    *(
        "٣".encode(),
        b"\xef\xbc\x91\xef\xbc\x92",
        "\u2028".encode(),
        "\ufeff".encode(),
        b"\r",
        b"\n\n",
        b",",
        b",,,",
        b"#",
        b"=",
    ),
    *(b"[" * 500, b"{" * 500, b"[" * 100_000, b'{"a":' * 20_000, b"-" * 5000, b"(" * 300, b"x" * 200_000),
    *(b"../../escape", b"/etc/passwd", b"file:///etc/passwd", b"__class__", b"${HOME}", b"!!python/object"),
]
VALUES: list[Any] = [  # for a value of a JSON document
    *(None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, float("nan"), float("inf"), -float("inf")),
    *(
        2**31,
        2**63,
        -(2**63),
        2**64,
        10**30,
        10**400,
        "",
        "x",
        "0",
        "1",
        "nan",
        "-1",
        "٣",
        "\u0000",
        "\ud800",
        "x" * 70_000,
    ),
    *([], [[]], [None], {}, {"": None}, {"x": {}}, ["x"], [1], [1, 2], [10**30], [-1], [0], [True], [1e308], [["x"]]),
    *(
        "../../escape",
        "/etc/passwd",
        "os:Escape-v0",
        "-" * 5000 + "1",
        "(" * 300,
        "[" * 3000,
        "@deep",
        "@long",
        "@digits",
    ),
    *("Hopper-v4", "[1, 2]", "{", '{"type": "Box"}', "gauss_hermite", "qdq", "iql"),
]
RAW = {'"@deep"': "[" * 100_000 + "]" * 100_000, '"@long"': '"' + "y" * 2**21 + '"', '"@digits"': "7" * 6000}


def one_of_these(values: list[Any]) -> st.SearchStrategy[Any]:
    """One of some values, which may be too long to be shown."""
    return st.integers(0, len(values) - 1).map(lambda number: values[number])


def positions() -> st.SearchStrategy[float]:
    """A place in a file, as a share of its length: anywhere, and more often near its ends."""
    return st.one_of(st.floats(0, 1), st.floats(0, 0.05), st.floats(0.95, 1))


def byte_edits() -> st.SearchStrategy[Edit]:
    """One change of some bytes."""
    place, short = positions(), st.integers(1, 64)
    return st.one_of(
        st.builds(
            lambda p, bit: _at(p, lambda b, i: b[:i] + bytes([b[i] ^ (1 << bit)]) + b[i + 1 :]),
            place,
            st.integers(0, 7),
        ),
        st.builds(lambda p, v: _at(p, lambda b, i: b[:i] + bytes([v]) + b[i + 1 :]), place, st.integers(0, 255)),
        st.builds(_number, place, st.sampled_from([1, 2, 4, 8]), st.sampled_from(EXTREMES), st.booleans()),
        st.builds(lambda p: _at(p, lambda b, i: b[:i]), place),
        st.builds(lambda p, n: _at(p, lambda b, i: b[:i] + b[i + n :]), place, short),
        st.builds(
            lambda p, n, k: _at(p, lambda b, i: b[:i] + b[i : i + n] * k + b[i + n :]), place, short, st.integers(2, 5)
        ),
        st.builds(lambda p, new: _at(p, lambda b, i: b[:i] + new + b[i:]), place, st.binary(min_size=1, max_size=40)),
        st.builds(_swap, place, place, st.sampled_from([1, 2, 4, 8, 16])),
        st.builds(lambda p, q: _at(p, lambda b, i: b[:i] + b[int(q * len(b)) :]), place, place),
    )


def text_edits() -> st.SearchStrategy[Edit]:
    """One change of a text: a word or a number replaced, a hostile word inserted, or bytes changed."""
    word = one_of_these(WORDS)
    return st.one_of(
        st.builds(lambda p, new: _at(p, lambda b, i: b[:i] + new + b[i:]), positions(), word),
        st.builds(_replaced, positions(), word),
        byte_edits(),
    )


def json_edits() -> st.SearchStrategy[Edit]:
    """One value of a JSON document replaced or removed; what is no JSON any more is left as it is."""
    return st.builds(_json, st.integers(0, 10_000), one_of_these([_Remove, *VALUES]))


class _Remove:
    """Stands for the removal of a value."""


def changed_value(content: Any, number: int, value: Any) -> Any:
    """A JSON document with the value that has this number, counted round and round, replaced by another."""
    content = json.loads(json.dumps(content))
    places: list[tuple[Any, Any]] = []
    documents: list[tuple[Any, Any, Any]] = []  # texts that are JSON themselves

    def walk(item: Any) -> None:
        for key in list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ():
            places.append((item, key))
            inner = item[key]
            if isinstance(inner, str) and inner[:1] == "{":
                inner = json.loads(inner)
                documents.append((item, key, inner))
            walk(inner)

    walk(content)
    index = number % (len(places) + 1)
    if index == len(places):
        return None if value is _Remove else value
    parent, key = places[index]
    if value is _Remove:
        del parent[key]
    else:
        parent[key] = value
    for outer, name, inner in documents:
        if name in outer if isinstance(outer, dict) else name < len(outer):
            outer[name] = json.dumps(inner) if isinstance(outer[name], str) and outer[name][:1] == "{" else outer[name]
    return content


def to_text(content: Any) -> bytes:
    """A JSON document as bytes, with what a JSON writer would not write."""
    text = json.dumps(content)
    for mark, raw in RAW.items():
        text = text.replace(mark, raw)
    return text.encode("utf-8", errors="surrogatepass")


def _json(number: int, value: Any) -> Edit:
    def edit(content: bytes) -> bytes:
        try:
            return to_text(changed_value(json.loads(content), number, value))
        except (ValueError, RecursionError):
            return content

    return edit


def _at(place: float, change: Callable[[bytes, int], bytes]) -> Edit:
    return lambda content: change(content, min(int(place * len(content)), len(content) - 1)) if content else content


def _number(place: float, width: int, value: int, big: bool) -> Edit:
    new = (value % 2 ** (8 * width)).to_bytes(width, "big" if big else "little")
    return _at(place, lambda b, i: b[:i] + new + b[i + width :])


def _swap(first: float, second: float, width: int) -> Edit:
    def change(content: bytes) -> bytes:
        a, b = sorted(int(place * max(0, len(content) - width)) for place in (first, second))
        if b < a + width:
            return content
        return (
            content[:a]
            + content[b : b + width]
            + content[a + width : b]
            + content[a : a + width]
            + content[b + width :]
        )

    return change


def _replaced(place: float, new: bytes) -> Edit:
    """The word or number nearest after a place, replaced."""

    def change(content: bytes, start: int) -> bytes:
        found = re.compile(rb"[\w.+-]+").search(content, start)
        return content if found is None else content[: found.start()] + new + content[found.end() :]

    return _at(place, change)


def safetensors_edits() -> st.SearchStrategy[Edit]:
    """One value of the header of a safetensors file replaced, with the length before it kept true."""

    def build(number: int, value: Any, inner: bool) -> Edit:
        def edit(content: bytes) -> bytes:
            try:
                size = int.from_bytes(content[:8], "little")
                header, rest = json.loads(content[8 : 8 + size]), content[8 + size :]
                texts = header.get("__metadata__", {})
                if inner and texts:  # a JSON document inside the metadata
                    key = min(texts)
                    texts[key] = to_text(changed_value(json.loads(texts[key]), number, value)).decode(errors="replace")
                else:
                    header = changed_value(header, number, value)
                text = to_text(header)
            except (ValueError, RecursionError, AttributeError, TypeError):
                return content
            return len(text).to_bytes(8, "little") + text + rest

        return edit

    values = [
        _Remove,
        *VALUES,
        "F16",
        "F64",
        "I64",
        "BOOL",
        "BF16",
        "F8_E4M3",
        "C64",
        [0, 1],
        [0, 10**18],
        [2**62, 2**62],
    ]
    return st.builds(build, st.integers(0, 10_000), one_of_these(values), st.booleans())


def edits(kind: str) -> st.SearchStrategy[list[Edit]]:
    """A few changes of a file of that kind, in order."""
    single = {
        "bytes": byte_edits(),
        "text": text_edits(),
        "json": st.one_of(json_edits(), text_edits()),
        "safetensors": st.one_of(safetensors_edits(), byte_edits()),
    }[kind]
    alone = single.map(lambda edit: [edit])  # many changes at once mostly hide each other
    return st.one_of(alone, alone, st.lists(single, min_size=2, max_size=5))
