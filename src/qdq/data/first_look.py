"""The process that looks through an HDF5 file before anyone else does; `qdq.data.hdf5` starts it and says why.

It runs as a script of its own and imports nothing of qdq. One line of input is one file; the answer says that the library
got through it, well or with an error, and no answer comes where it did not.
"""

import contextlib
import json
import resource
import signal
import sys
from typing import Any

import h5py
from h5py import h5d, h5g, h5l, h5o  # pyright: ignore[reportAttributeAccessIssue]  # no stubs

DEPTH = 3  # episodes, their observations, and the parts of those


def main() -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks decides when to stop
    for line in sys.stdin:
        request = json.loads(line)
        _limit(request["seconds"], request["memory"])
        with contextlib.suppress(Exception):  # whoever reads the file next meets the same error, and has words for it
            look(request["path"])
        print("done", flush=True)


def look(path: str) -> None:
    """Touch everything that a reader touches except the numbers: links, headers, types, layouts, chunks, attributes."""
    with h5py.File(path, "r") as file:
        seen: set[int] = set()
        waiting = [(file.id, 0)]
        while waiting:
            group, depth = waiting.pop()
            address = h5o.get_info(group).addr
            if address in seen:  # links may go round
                continue
            seen.add(address)
            _attributes(group)
            for name in list(group.links):
                item = _opened(group, name)
                if isinstance(item, h5g.GroupID) and depth < DEPTH:
                    waiting.append((item, depth + 1))


def _opened(group: Any, name: bytes) -> Any:
    try:
        if group.links.get_info(name).type != h5l.TYPE_HARD:
            return None
        item = h5o.open(group, name)
        if isinstance(item, h5d.DatasetID):
            properties = item.get_create_plist()
            _ = item.dtype, item.shape, item.get_storage_size(), properties.get_external_count()
            if properties.get_layout() == h5d.CHUNKED:
                item.get_num_chunks()
        return item
    except Exception:  # the next member may still bring the library down
        return None


def _attributes(group: Any) -> None:
    attributes = h5py.Group(group).attrs
    for key in list(attributes):
        with contextlib.suppress(Exception):
            attributes[key]


def _limit(seconds: int, memory: int) -> None:
    """Let the system end this process where a file takes it longer, or more memory, than is reasonable."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, hard))


if __name__ == "__main__":
    main()
