"""Formatting of the user's text for one-line messages."""


def one_line(text: str, longest: int = 200) -> str:
    """Return the beginning of the text, with ↵ for line ends and ? for characters that cannot be printed."""
    visible = text[:longest].replace("\r\n", "↵").replace("\n", "↵")
    line = "".join(character if character.isprintable() else "?" for character in visible)
    return line if len(text) <= longest else line + "…"
