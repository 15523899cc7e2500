"""python -m chatbot.chat.bots: the same as `duida bot`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("bot"))
