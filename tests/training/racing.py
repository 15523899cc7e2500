"""`python -m tests.training.racing NAME FLAG ...` trains with a pause after the check of an attempt.

It makes the file NAME-checked, and goes on when there is a file NAME-go.
"""

import sys
import time
from pathlib import Path

from chatbot import commands
from chatbot.config.training import Settings
from chatbot.training import data
from chatbot.training.attempt import has_checkpoint


def slow_has_checkpoint(settings: Settings) -> bool:
    """Check, then pause, so that another process can begin the same attempt."""
    found = has_checkpoint(settings)
    Path(f"{name}-checked").touch()
    while not Path(f"{name}-go").exists():
        time.sleep(0.1)
    return found


if __name__ == "__main__":
    name = sys.argv.pop(1)
    data.has_checkpoint = slow_has_checkpoint
    sys.exit(commands.main("train"))
