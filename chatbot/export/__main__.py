"""python -m chatbot.export: the same as `duida export`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("export"))
