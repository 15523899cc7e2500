"""A real pseudo-terminal, and what is written to it."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import threading
from typing import TextIO


class PseudoTerminal:
    """The stream is a terminal of so many columns. Used as a context manager, which closes it."""

    def __init__(self, columns: int) -> None:
        self._reader, writer = pty.openpty()
        fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.stream: TextIO = open(writer, "w", encoding="utf-8", buffering=1)  # noqa: SIM115  # closed by __exit__
        self._written = b""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> "PseudoTerminal":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.close()
        self._closed.set()
        self._thread.join()
        os.close(self._reader)

    def _read(self) -> None:
        """Read until nothing is left after the stream is closed; other processes may have inherited its other end."""
        ready = True
        while ready or not self._closed.is_set():
            ready = bool(select.select([self._reader], [], [], 0.05)[0])
            try:
                self._written += os.read(self._reader, 65536) if ready else b""
            except OSError:  # the end of a pseudo-terminal, on Linux
                return

    @property
    def frames(self) -> list[str]:
        """What was shown in a line at a time, after the terminal is closed."""
        return [frame.rstrip() for frame in re.split(r"[\r\n]+", self._written.decode()) if frame.strip()]

    @property
    def lines(self) -> list[str]:
        """What stays on the screen."""
        lines = self._written.decode().replace("\r\n", "\n").split("\n")
        return [line.split("\r")[-1].rstrip() for line in lines]
