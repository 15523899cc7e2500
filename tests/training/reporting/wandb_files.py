"""Reads the file of an offline run of wandb, for which its client has no reader.

The file is a log as LevelDB's: blocks of 32 KiB, in which a record is a checksum (4 bytes), the length of its content
(2), its kind (1: whole, 2: first part, 3: middle, 4: last) and the content, here a message of wandb's protocol. It
begins with 7 bytes of its own.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, OWN = 32768, 7, 7


def messages(path: Path) -> Iterator[Any]:
    """Yield the records of a run."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, content = path.read_bytes(), OWN, b""
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:  # too short for a record
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        content += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):
            yield Record.FromString(content)
            content = b""


def run_of(path: Path) -> dict[str, Any]:
    """Return the configuration, the values by step, and the exit code of a run."""
    run: dict[str, Any] = {"config": {}, "history": {}}
    for message in messages(path):
        kind = message.WhichOneof("record_type")
        if kind == "run":
            run["config"] |= {item.key: json.loads(item.value_json) for item in message.run.config.update}
        elif kind == "history":
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in message.history.item
            }
            run["history"].setdefault(values["_step"], {}).update(values)
        elif kind == "exit":
            run["exit"] = message.exit.exit_code
    return run
