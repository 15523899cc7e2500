"""Entry point of `python -m chatbot.attempts`, which is equivalent to `duida attempts`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("attempts"))
