"""Runs `duida export` as `python -m chatbot.export`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("export"))
