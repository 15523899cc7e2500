"""python -m chatbot.attempts: the same as `duida attempts`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("attempts"))
