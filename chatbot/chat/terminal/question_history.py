"""The file with the questions of earlier sessions."""

import os
from pathlib import Path

LARGEST_FILE = 1 << 20  # bytes


def history_path() -> Path | None:
    """Return the path of the file in the user's state folder; None without a home directory."""
    folder = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME", "")
    try:
        state = Path(folder) if os.path.isabs(folder) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return state / "chatbot" / "chat_history"


def make_private(path: Path) -> None:
    """Make the file if there is none, readable by its owner only, and keep its newer half if it is large.

    Raises OSError if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
        os.chmod(path, 0o600)
        if (size := file.seek(0, os.SEEK_END)) > LARGEST_FILE:
            file.seek(size - LARGEST_FILE // 2)
            kept = file.read().partition(b"\n\n")[2]  # entries begin after an empty line
            file.truncate(0)
            file.write(b"\n" + kept)
