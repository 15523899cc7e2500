"""All measures of a set of replies."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

from chatbot.evaluation.likelihood import Likelihood
from chatbot.evaluation.ngrams import Ngrams
from chatbot.evaluation.overlap import Overlap, tokenization_of
from chatbot.evaluation.relevance import Relevance, relevance
from chatbot.evaluation.repetition import Repetition


@dataclasses.dataclass(frozen=True)
class Measures:
    """Sums and counts over a set of replies; those of several sets add up."""

    overlap: Overlap
    repetition: Repetition
    tokens: tuple[Ngrams, Ngrams]  # single tokens, and pairs
    characters: tuple[Ngrams, Ngrams]  # single characters, and pairs
    relevance: Relevance
    questions: Likelihood | None = None  # of the questions given the replies; None if the model has not learned them

    def __add__(self, other: "Measures") -> "Measures":
        """Return the sums over both sets of replies."""
        first, second = self.questions, other.questions
        return Measures(
            self.overlap + other.overlap,
            self.repetition + other.repetition,
            (self.tokens[0] + other.tokens[0], self.tokens[1] + other.tokens[1]),
            (self.characters[0] + other.characters[0], self.characters[1] + other.characters[1]),
            self.relevance + other.relevance,
            None if first is None or second is None else first + second,
        )

    def values(self) -> dict[str, float | None]:
        """Return the measures by name, as in the JSON of `python -m chatbot.evaluation`."""
        return {
            "bleu": self.overlap.bleu,
            "chrf": self.overlap.chrf,
            "distinct_1": self.tokens[0].distinct,
            "distinct_2": self.tokens[1].distinct,
            "distinct_characters_1": self.characters[0].distinct,
            "distinct_characters_2": self.characters[1].distinct,
            "top_reply_share": self.repetition.top_share(1),
            "top10_reply_share": self.repetition.top_share(10),
            "relevance_at_1": self.relevance.at_1,
            "repeated_reply_share": self.repetition.repeated_share,
            "reply_entropy": self.repetition.entropy,
            "mean_reply_tokens": self.tokens[0].counts.total() / max(1, self.repetition.replies),
            "question_nats_per_character": None if self.questions is None else self.questions.nats_per_character,
        }


def measure(
    questions: Sequence[str],
    replies: Sequence[str],
    references: Sequence[str],
    tokens: Callable[[str], list[str]],
    question_likelihood: Likelihood | None = None,
    tokenization: str | None = None,
) -> Measures:
    """Measure the replies to questions.

    questions, replies, references: equally many texts; only a reply may be empty. tokens: from a text to its tokens.
    question_likelihood: of the questions given the replies. tokenization: of BLEU; None: by the references.
    """
    tokenised = [tokens(reply) for reply in replies]
    visible = [reply.replace(" ", "") for reply in replies]
    return Measures(
        Overlap(tuple(replies), tuple(references), tokenization or tokenization_of(references)),
        Repetition(Counter(replies)),
        (Ngrams.of(tokenised, 1), Ngrams.of(tokenised, 2)),
        (Ngrams.of(visible, 1), Ngrams.of(visible, 2)),
        relevance(questions, replies),
        question_likelihood,
    )
