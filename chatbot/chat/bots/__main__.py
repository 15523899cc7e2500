"""Entry point for `python -m chatbot.chat.bots`, which is equivalent to `duida bot`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("bot"))
