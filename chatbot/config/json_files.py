"""Reads JSON files that may be damaged, or made by others."""

import json
from pathlib import Path
from typing import Any

# Those of an attempt have a few kilobytes, more if thousands of data files are named.
MOST_BYTES = 64_000_000


def read_json(path: Path) -> Any:
    """Return the value in a JSON file.

    Raises OSError for a file that cannot be read, and ValueError for one that is not JSON or has more than MOST_BYTES.
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
