"""python -m chatbot: the same as the installed command `duida`."""

import sys

from chatbot.commands import duida

if __name__ == "__main__":
    sys.exit(duida())
