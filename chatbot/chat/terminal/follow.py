"""Notices a newer checkpoint of an attempt, for --follow."""

from pathlib import Path

from chatbot.config.attempts import BEST, LAST
from chatbot.model.checkpoint_files import read_pointer


class Follower:
    """Watches the pointer to the checkpoint that answers: the best one with validation, otherwise the last one.

    directory: of the attempt.
    """

    def __init__(self, directory: Path) -> None:
        self._best, self._last = directory / BEST, directory / LAST
        self._read: bytes | None = None

    def differs(self, step: int) -> bool:
        """Return whether the pointer was changed since the last call and names another checkpoint than of this step.

        Raises UserError for a pointer that is missing or damaged.
        """
        path = self._best if self._best.exists() else self._last
        content = path.read_bytes() if path.exists() else b""
        if content == self._read:
            return False
        self._read = content
        return bool(read_pointer(path)["step"] != step)
