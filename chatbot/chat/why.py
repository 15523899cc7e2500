"""The table of /why: which words of the question each word of a reply looked at."""

from chatbot.corpus.reading.display import padded, width
from chatbot.inference.word_attention import WordAttention

# Words of the question shown for each word of the reply, the largest weights first.
SHOWN = 3
NO_REPLY = "Nothing to explain yet: ask a question first."
NO_ATTENTION = "This model shows no attention: it was trained with --attention none or with --input-feeding."


def table(attention: WordAttention) -> list[str]:
    """Return a line for each word of the reply: the word, and words of the question with their weights."""
    rows = []
    for word, weights in zip(attention.reply, attention.weights.tolist(), strict=True):
        top = sorted(range(len(weights)), key=lambda place: -weights[place])[:SHOWN]
        rows.append([_visible(word), *(f"{_visible(attention.question[i])} {weights[i]:.2f}" for i in top)])
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]


def _visible(word: str) -> str:
    """Return a word without what would move the cursor."""
    return "".join(character if character.isprintable() else "\ufffd" for character in word)
