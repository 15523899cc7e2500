"""Quality measures of replies: overlap with references, diversity, repetition, relevance, fluency and precision."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.corpus import AUTO
from chatbot.config.evaluation import ANY, CHAR, ZH
from chatbot.corpus.dataset import Corpus
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import ASK, EOS, Vocabulary, question_of
from chatbot.decoding.ngram_mixture import NgramMixture
from chatbot.decoding.ngrams import Ngrams, count_ngrams, positions_of
from chatbot.decoding.reply_text import Reply
from chatbot.display import CHINESE_OR_KANA
from chatbot.retrieval.characters import character_index

if TYPE_CHECKING:  # importing this module must not import TensorFlow
    from chatbot.evaluation.likelihood import Scorer

Values = dict[str, float | None]
Tokenise = Callable[[str], list[str]]

SEED = 1
# A text counts as written in a script if at least this fraction of its letters belong to the script. The fraction is
# low because a Chinese character carries as much text as about five Latin letters.
MIN_SHARE = 0.1
CHINESE = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
KANA_OR_HANGUL = re.compile(
    r"[\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]"
)
# A unit is a single character in scripts without spaces, and a word in other scripts.
UNIT = re.compile(rf"[{CHINESE_OR_KANA}]|[^\W{CHINESE_OR_KANA}]+|[^\w\s]")
# Number of questions that `ranked_first` ranks for each reply, including the question that it answers.
QUESTIONS = 10
# `ranked_first` compares replies only with the questions in the same block, so its time is linear in their number.
BLOCK = 2000
# The order of the character n-grams for fluency.
ORDER = 4


class Sample(NamedTuple):
    """A held-out pair."""

    ids: list[int]  # token ids of the question
    question: str
    answer: str


def sample_of(source: list[int], target: Sequence[int], vocabulary: Vocabulary) -> Sample:
    """Decode a pair into a sample. `Sample.ids` also contains the previous turns of the conversation."""
    question, answer = (vocabulary.text(ids) for ids in (question_of(source, vocabulary), target))
    return Sample(source, question, answer)


def samples_of(corpus: Corpus, maximum: int | None = None) -> list[Sample]:
    """Return the pairs of a corpus, or a random subset of `maximum` pairs drawn with a fixed seed."""
    rows = np.arange(corpus.pairs)
    if maximum is not None and maximum < corpus.pairs:
        rows = np.sort(np.random.default_rng(SEED).choice(rows, maximum, replace=False))
    samples = []
    first = 0
    for pairs in corpus.shards:
        samples += [
            sample_of(pairs.sources.row(i).tolist(), pairs.targets.row(i).tolist(), corpus.vocabulary)
            for i in rows[(rows >= first) & (rows < first + len(pairs))] - first
        ]
        first += len(pairs)
    return samples


class Measurer:
    """Computes quality measures of replies to held-out questions. The held-out answers are the references.

    Args:
        samples: The held-out pairs.
        vocabulary: The vocabulary of the model.
        tokens: A function that splits a text into tokens, as in training.
        scorer: Scores questions given replies, if the model learned both directions; else None.
        tokenize: The tokenisation for BLEU (--tokenize).
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        vocabulary: Vocabulary,
        tokens: Tokenise,
        scorer: "Scorer | None",
        tokenize: str = AUTO,
    ) -> None:
        self.references = [sample.answer for sample in samples]
        self.tokenization = tokenization_of(self.references) if tokenize == AUTO else tokenize
        self._questions = [sample.question for sample in samples]
        self._question_ids = Ragged.from_rows([question_of(sample.ids, vocabulary) for sample in samples])
        self._question_characters = np.array([len(text.replace(" ", "")) for text in self._questions], np.int64)
        self._vocabulary = vocabulary
        self._tokens = tokens
        self._scorer = scorer

    def __call__(self, replies: Sequence[str]) -> Values:
        """Compute all measures for a list with one reply per question.

        The names are those in the JSON output of `python -m chatbot.evaluation`:

        distinct_N measures diversity. It decreases with the number of replies, so only sets of equal size are
        comparable. It ignores the questions, so it should be read together with relevance.

        repeated_reply_share is the fraction of replies that are identical to the reply to another question.

        reply_entropy is the entropy of the distribution of whole replies in nats: log(n) for n distinct replies.

        relevance_at_1 is the fraction of replies that are more similar to their own question than to nine others. It is
        about 0.1 for random replies. Text that a reply copies from its question is ignored, so replies that repeat
        their question also have about 0.1. With fewer than ten pairs, the value is None.
        """
        tokenised = [self._tokens(reply) for reply in replies]
        visible = [reply.replace(" ", "") for reply in replies]
        counts = Counter(replies)
        number = max(1, len(replies))
        shares = ranked_first(self._questions, replies)
        return {
            "bleu": bleu(replies, self.references, self.tokenization),
            "chrf": chrf(replies, self.references),
            "distinct_1": distinct(tokenised, 1),
            "distinct_2": distinct(tokenised, 2),
            "distinct_characters_1": distinct(visible, 1),
            "distinct_characters_2": distinct(visible, 2),
            "top_reply_share": top_share(replies, 1),
            "top10_reply_share": top_share(replies, 10),
            "relevance_at_1": None if shares is None else float(shares.mean()),
            "repeated_reply_share": sum(count for count in counts.values() if count > 1) / number,
            "reply_entropy": sum(count * math.log(number / count) for count in counts.values()) / number,
            "mean_reply_tokens": sum(map(len, tokenised)) / number,
            "question_nats_per_character": self._question_nats_per_character(replies),
        }

    def random_replies(self) -> list[str]:
        """Randomly assign to each question the reference of another question, with a fixed seed.

        If there is only one question, it keeps its own reference.
        """
        order = np.random.default_rng(SEED).permutation(len(self.references))
        others = np.empty_like(order)
        others[order] = np.roll(order, 1)
        return [self.references[other] for other in others]

    def _question_nats_per_character(self, replies: Sequence[str]) -> float | None:
        """Return the nats per character of the questions given the replies; None without a scorer."""
        if self._scorer is None:
            return None
        sources = Ragged.from_rows([self._vocabulary.ids(self._tokens(reply)) or [EOS] for reply in replies])
        directions = np.full(len(replies), ASK, np.int32)
        pairs = EncodedPairs(sources, self._question_ids, directions, self._question_characters)
        return self._scorer([pairs]).nats_per_character


def distinct(replies: Sequence[Sequence[str]], n: int) -> float:
    """Return the number of distinct n-grams divided by the number of all n-grams (Li et al., 2016).

    Args:
        replies: Lists of tokens, or strings for n-grams of characters.
        n: The order of the n-grams.

    Returns:
        The ratio, or 0 if there are no n-grams.
    """
    counts = Counter(tuple(reply[i : i + n]) for reply in replies for i in range(len(reply) - n + 1))
    return len(counts) / max(1, counts.total())


def top_share(replies: Sequence[str], number: int) -> float:
    """Return the fraction of replies, from 0 to 1, that are among the `number` most common replies."""
    return sum(count for _, count in Counter(replies).most_common(number)) / max(1, len(replies))


def tokenization_of(references: Sequence[str]) -> str:
    """Return the name of the sacrebleu tokenisation that suits the language of the references."""
    letters = "".join(filter(str.isalpha, "".join(references)))
    minimum = max(1, MIN_SHARE * len(letters))
    if len(KANA_OR_HANGUL.findall(letters)) >= minimum:
        return CHAR
    return ZH if len(CHINESE.findall(letters)) >= minimum else ANY


def bleu(replies: Sequence[str], references: Sequence[str], tokenization: str) -> float:
    """Return sacrebleu's corpus BLEU (Post, 2018), from 0 to 100; 0 if there are no replies."""
    import sacrebleu
    from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

    if not replies:
        return 0.0
    # force=True suppresses a warning about replies that end in " .".
    metric = sacrebleu.BLEU(tokenize=tokenization, force=True)
    score = float(metric.corpus_score(replies, [references]).score)
    for kind in (type(metric.tokenizer), TokenizerRegexp):
        if hasattr(kind.__call__, "cache_clear"):
            kind.__call__.cache_clear()  # after many validations, these caches would use 40 MB
    return score


def chrf(replies: Sequence[str], references: Sequence[str]) -> float:
    """Return chrF2, the F-score of character n-grams up to order 6 (Popovic, 2015), from 0 to 100.

    Without replies, the score is 0.
    """
    import sacrebleu

    return float(sacrebleu.corpus_chrf(replies, [references]).score) if replies else 0.0


def ranked_first(questions: Sequence[str], replies: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """Compute whether each reply is more similar to its own question than to nine others.

    The nine questions are drawn with a fixed seed. Text that a reply copies from its own question is ignored.

    Returns:
        An array with shape [replies], which contains 1 if the reply's own question is the most similar one, 1/k if it
        is one of k equally similar ones, and 0 otherwise. None if there are fewer than ten questions.
    """
    if len(questions) < QUESTIONS:
        return None
    random = np.random.default_rng(SEED)
    shares = np.zeros(len(questions))
    for block in np.array_split(random.permutation(len(questions)), math.ceil(len(questions) / BLOCK)):
        index = character_index([questions[i] for i in block])
        for position, number in enumerate(block):
            others = random.choice(len(block) - 1, QUESTIONS - 1, replace=False)
            others += others >= position
            scores = index.scores(without_copies(replies[number], questions[number]))
            equal, higher = (int(compare(scores[others], scores[position]).sum()) for compare in (np.equal, np.greater))
            shares[number] = 0 if higher else 1 / (1 + equal)
    return shares


def without_copies(reply: str, question: str) -> str:
    """Remove the passages from a reply that it copies from the question.

    A passage has at least two words, or two characters in scripts without spaces. It is replaced by a newline, to keep
    the text before and after it apart.
    """
    units = UNIT.findall(reply)
    question_pairs = {*itertools.pairwise(UNIT.findall(question))}
    pairs = [pair in question_pairs for pair in itertools.pairwise(units)]
    copied = [before or after for before, after in zip([False, *pairs], [*pairs, False], strict=True)]
    parts = itertools.groupby(zip(units, copied, strict=False), key=lambda marked: marked[1])
    return "".join("\n" if is_copy else "".join(unit for unit, _ in run) for is_copy, run in parts)


class Fluency:
    """Measures the fluency of texts by an n-gram model of characters, estimated from the replies of another corpus."""

    def __init__(self, corpus: Corpus, tokens: Tokenise) -> None:
        self._vocabulary = corpus.vocabulary
        self._tokens = tokens
        self._ngrams = count_ngrams((part.targets for part in corpus.shards), len(corpus.vocabulary), ORDER)

    def __call__(self, texts: Sequence[str]) -> float | None:
        """Return the negative log-likelihood of texts in nats per character; None if all texts are empty.

        The likelihood includes the end of each text. Spaces do not count as characters.
        """
        characters = sum(len(text.replace(" ", "")) for text in texts)
        ids = Ragged.from_rows([self._vocabulary.ids(self._tokens(text)) for text in texts])
        return -float(np.log(probabilities(self._ngrams, ids)).sum()) / characters if characters else None


def probabilities(ngrams: Ngrams, sequences: Ragged) -> npt.NDArray[np.float64]:
    """Return the n-gram probability of each id, and of EOS after each sequence, with shape [positions]."""
    histories, ids = positions_of(sequences, ngrams.order)
    mixture = NgramMixture(ngrams, weight=0.5)  # the weight has no effect without a model
    return np.asarray(mixture.probabilities_of(histories, ids[:, None])[:, 0], np.float64)


def precision_measures(
    replies: Sequence[Reply], references: Sequence[str], outside: Sequence[Reply], precision: float
) -> dict[str, Any]:
    """Find the lowest score threshold at which the answered questions reach a target precision.

    Replies with scores below the threshold are rejected. A reply is right if it equals the reference.

    Args:
        replies: Replies to questions that have a right answer.
        references: The right answers.
        outside: Replies to questions that have no right answer.
        precision: The target precision, from 0 to 1.

    Returns:
        A dictionary with these keys:

        least_score: The threshold; None if no threshold reaches the target precision.
        answered_share: The fraction of questions with a right answer that are answered at this threshold.
        precision_curve: A tuple for each threshold, highest first: the fraction answered, the precision, and the score.
    """
    answers = [(reply.score, reply.text == right, True) for reply, right in zip(replies, references, strict=True)]
    answers += [(reply.score, False, False) for reply in outside]
    answers.sort(key=lambda answer: -answer[0])
    curve = list[tuple[float, float, float]]()
    right = 0
    inside = 0
    for number, (score, is_right, is_inside) in enumerate(answers, start=1):
        right = right + is_right
        inside = inside + is_inside
        if (
            number == len(answers) or answers[number][0] < score
        ):  # replies with equal scores are either all answered or all rejected
            curve.append((inside / len(replies), right / number, score))
    precise = [point for point in curve if point[1] >= precision]
    share, _, min_score = precise[-1] if precise else (0.0, 0.0, None)
    return {"least_score": min_score, "answered_share": share, "precision_curve": curve}
