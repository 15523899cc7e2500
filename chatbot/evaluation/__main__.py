"""python -m chatbot.evaluation: the same as `duida evaluate`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("evaluate"))
