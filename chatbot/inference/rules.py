"""Fixed answers to questions that match a rule in the --rules file."""

import re
from pathlib import Path
from typing import NamedTuple

from chatbot.errors import UserError


class Rule(NamedTuple):
    """A regular expression that can match anywhere in a question, and the fixed answer to such questions."""

    pattern: re.Pattern[str]
    answer: str


def read_rules(path: Path) -> list[Rule]:
    """Read rules from a UTF-8 file with one `PATTERN<TAB>ANSWER` per line.

    PATTERN is a case-insensitive Python regular expression. Blank lines and lines starting with # are ignored.

    Raises:
        UserError: The file cannot be read, or a line is not a valid rule.
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
    """Return the answer of the first rule that matches the question, or None."""
    return next((rule.answer for rule in rules if rule.pattern.search(question)), None)
