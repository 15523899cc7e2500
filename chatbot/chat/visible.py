"""Text that cannot control a terminal."""

# Invisible characters that join others, as in emoji of several people and in Persian.
JOINERS = "\u200c\u200d"


def visible(text: str) -> str:
    """Return a text as one line, without control characters, which could move the cursor or change its direction.

    White space becomes spaces. Any other character that cannot be printed becomes U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character.isprintable() or character in JOINERS:
        return character
    return " " if character.isspace() else "\ufffd"


def decodable(text: str) -> str:
    """Return a text without lone surrogates, which have no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
