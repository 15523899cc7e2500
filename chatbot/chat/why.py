"""The table of /why: which words of the question each word of a reply looked at."""

from chatbot.chat.visible import visible
from chatbot.corpus.reading.display import padded, width
from chatbot.inference.word_attention import WordAttention

# Words of the question shown for each word of the reply, the largest weights first.
SHOWN = 3
NO_ATTENTION = "This model shows no attention: it was trained with --attention none or with --input-feeding."


def table(attention: WordAttention, columns: int = 80) -> list[str]:
    """Return a line for each word of the reply: the word, and words of the question with their weights.

    columns: of the terminal. Fewer words of the question are shown if the lines are wider, at least one.
    """
    for shown in range(SHOWN, 0, -1):
        lines = _lines(attention, shown)
        if max(map(width, lines)) <= columns:
            break
    return lines


def _lines(attention: WordAttention, shown: int) -> list[str]:
    rows = []
    for word, weights in zip(attention.reply, attention.weights.tolist(), strict=True):
        top = sorted(range(len(weights)), key=lambda place: -weights[place])[:shown]
        rows.append([visible(word), *(f"{visible(attention.question[i])} {weights[i]:.2f}" for i in top)])
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]
