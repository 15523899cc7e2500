"""The file of --api-key-file."""

from pathlib import Path

from chatbot.errors import UserError


def read_keys(path: Path) -> list[bytes]:
    """Return the keys in a file, one per line; empty lines are ignored.

    Raises UserError for a file that cannot be read, or has no keys, or one that no header can hold.
    """
    try:
        keys = [line.strip() for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"--api-key-file {path}: {error.strerror}; give a file with a key in each line") from None
    if not keys:
        raise UserError(f"--api-key-file {path}: the file has no keys; write one in each line")
    for number, key in enumerate(keys, 1):
        if not all(0x21 <= byte <= 0x7E for byte in key):
            raise UserError(f"--api-key-file {path}: key {number} has other characters than ASCII without spaces")
    return keys
