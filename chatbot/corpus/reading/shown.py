"""How something of the user's is shown inside a message of one line."""


def shown(text: str, longest: int = 200) -> str:
    """The text in one line of at most this many characters, line ends as ↵ and what cannot be printed as ?."""
    visible = text[:longest].replace("\r\n", "↵").replace("\n", "↵")
    line = "".join(character if character.isprintable() else "?" for character in visible)
    return line if len(text) <= longest else line + "…"
