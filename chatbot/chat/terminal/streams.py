"""The encodings of standard input and output."""

import io
import os
from typing import TextIO

from chatbot.errors import in_c_locale


def set_encoding(stream: TextIO | None) -> None:
    """Set a pipe or a file to UTF-8 on every system. A console keeps its encoding, which may be GBK, but not ASCII.

    PYTHONIOENCODING in the environment takes precedence. Characters that cannot be encoded or decoded are replaced.
    """
    if isinstance(stream, io.TextIOWrapper):
        keep = (stream.isatty() and not in_c_locale(stream)) or "PYTHONIOENCODING" in os.environ
        stream.reconfigure(encoding=None if keep else "utf-8", errors="replace")
