"""Entry point of `python -m chatbot.corpus`, which is the same as `duida data`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("data"))
