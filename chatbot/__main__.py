"""Entry point of `python -m chatbot`, which is the same as the installed command `duida`."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main())
