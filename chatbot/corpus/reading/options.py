"""What the user gives about files instead of having it detected."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReadOptions:
    """How the files of a corpus are read. Hashable, and part of the cache's key."""

    columns: tuple[str, ...] = ()  # of question and answer, by name or by number from 1; () to detect them
    encoding: str | None = None  # one of Python's codecs
    format: str | None = None  # one of FORMATS in read.py
    me: str | None = None  # the name or number of the person whose replies in chat exports are learned; None for all
    part: str | None = None  # of a JSON object, the part whose keys are read; None for all keys


DETECTED = ReadOptions()
