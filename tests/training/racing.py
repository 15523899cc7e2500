"""`python -m tests.training.racing SECONDS FLAG ...` trains with a pause between the check and the use of an attempt."""

import sys
import time

from chatbot import commands
from chatbot.config.training import Settings
from chatbot.training import data
from chatbot.training.attempt import has_checkpoint


def slow_has_checkpoint(settings: Settings) -> bool:
    """Check, then pause, so that another process can begin the same attempt."""
    found = has_checkpoint(settings)
    time.sleep(seconds)
    return found


if __name__ == "__main__":
    seconds = float(sys.argv.pop(1))
    data.has_checkpoint = slow_has_checkpoint
    sys.exit(commands.train())
