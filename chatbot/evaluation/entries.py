"""What a report says about each question: its replies, their scores and their attention."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.relevance import ranked_first
from chatbot.evaluation.samples import Sample
from chatbot.inference.replier import BATCH
from chatbot.inference.responder import word_attention
from chatbot.inference.word_attention import WordAttention
from chatbot.model.saved import Trained
from chatbot.quiet import no_bars

# The attention of this many replies is shown, which bounds the size of the report.
MOST_ATTENTION = 200


class Entry(NamedTuple):
    """A question and its replies."""

    question: str
    reference: str
    reply: str
    log_probability: float  # of the reply, in nats
    relevance: float | None  # the share of the first rank among ten questions
    attention: WordAttention | None
    baseline: str | None  # the reply of the baseline
    before: tuple[str, ...] = ()  # the turns before the question that the model reads, the oldest first


def entries_of(
    trained: Trained,
    samples: Sequence[Sample],
    replies: Sequence[str],
    tokens: Callable[[str], list[str]],
    baseline: Sequence[str] | None,
) -> list[Entry]:
    """Return an entry for each question.

    replies: of the model. tokens: from a text to its tokens. baseline: the replies of the baseline, if there is one.
    """
    vocabulary, max_length = trained.vocabulary, trained.settings.model.max_length
    questions = [sample.ids[:max_length] for sample in samples]
    ids = [vocabulary.ids(tokens(reply)) for reply in replies]
    shares = ranked_first([sample.question for sample in samples], replies)
    relevance = [None] * len(replies) if shares is None else shares.tolist()
    attention = [*_attention(trained, questions[:MOST_ATTENTION], ids[:MOST_ATTENTION])]
    attention += [None] * (len(replies) - len(attention))
    of_baseline = [None] * len(replies) if baseline is None else baseline
    texts = ((sample.question, sample.answer) for sample in samples)
    before = [_turns_before(question, vocabulary) for question in questions]
    columns = (texts, replies, _log_probabilities(trained, questions, ids), relevance, attention, of_baseline, before)
    return [Entry(*pair, *others) for pair, *others in zip(*columns, strict=True)]


def _turns_before(source: Sequence[int], vocabulary: Vocabulary) -> tuple[str, ...]:
    marks = range(vocabulary.first_mark, vocabulary.first_byte)
    starts = [place for place, i in enumerate(source) if i in marks]
    return tuple(vocabulary.text(source[start:end]) for start, end in itertools.pairwise(starts))


def _log_probabilities(
    trained: Trained, questions: Sequence[list[int]], replies: Sequence[list[int]]
) -> Iterator[float]:
    scorer = Scorer(trained.model)
    pairs = EncodedPairs.question_to_answer(
        Ragged.from_rows(questions), Ragged.from_rows(replies), np.zeros(len(questions), np.int64)
    )
    for number in tqdm(range(len(pairs)), desc="Report", unit=" replies", leave=False, delay=2, disable=no_bars()):
        yield -scorer([pairs.select([number])]).nats


def _attention(
    trained: Trained, questions: Sequence[list[int]], replies: Sequence[list[int]]
) -> Iterator[WordAttention | None]:
    if not trained.model.decoder.shows_attention:
        return
    for start in range(0, len(questions), BATCH):
        part = slice(start, start + BATCH)
        yield from word_attention(trained.model, trained.vocabulary, questions[part], replies[part])
