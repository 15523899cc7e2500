"""Fixed answers to questions that match a pattern, which are given before anything is looked up or generated."""

import re
from pathlib import Path
from typing import NamedTuple

from chatbot.errors import UserError


class Rule(NamedTuple):
    """A pattern that is searched for anywhere in a question, and the answer to that question."""

    pattern: re.Pattern[str]
    answer: str


def read_rules(path: Path) -> list[Rule]:
    """Return the rules in a UTF-8 file, one `PATTERN<TAB>ANSWER` a line.

    PATTERN is a regular expression of Python, in which upper and lower case are the same. Blank lines, and those that
    begin with #, are left out. Raises UserError for a file that cannot be read, and names the line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8"
        raise UserError(f"--rules {path}: cannot be read ({reason}); give a text file of PATTERN<TAB>ANSWER") from None
    rules = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, answer = (part.strip() for part in line.partition("\t"))
        if not pattern or not answer or "\t" in answer:
            raise UserError(f"--rules {path}: line {number:,} is not PATTERN<TAB>ANSWER; correct it")
        try:
            rules.append(Rule(re.compile(pattern, re.IGNORECASE), answer))
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(f"--rules {path}: line {number:,}: {error}; correct the pattern") from None
    return rules


def fixed_answer(rules: list[Rule], question: str) -> str | None:
    """Return the answer of the first rule whose pattern is in the question, None if there is none."""
    return next((rule.answer for rule in rules if rule.pattern.search(question)), None)
