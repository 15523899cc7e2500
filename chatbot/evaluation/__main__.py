"""Entry point of `python -m chatbot.evaluation`, which is equivalent to `duida evaluate`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("evaluate"))
