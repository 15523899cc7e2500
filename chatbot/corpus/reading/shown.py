"""How something of the user's is shown inside a message of one line."""


def shown(text: str, longest: int = 200) -> str:
    """The text in one line of at most this many characters, with a question mark for what cannot be printed."""
    line = "".join(character if character.isprintable() else "?" for character in text[:longest])
    return line if len(text) <= longest else line + "…"
