"""The measures of a set of replies: overlap with the references, variety, repetition, and relevance to the question.

And how usual their characters are in another corpus, and from which score on they are right.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.evaluation import ANY, AUTO_TOKENIZE, CHAR, ZH
from chatbot.corpus.dataset import Corpus
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import ASK, EOS, Vocabulary, question_of
from chatbot.decoding.ngram_mixture import NgramMixture
from chatbot.decoding.ngrams import Ngrams, ngrams_of, positions_of
from chatbot.decoding.reply_text import Reply
from chatbot.display import CHINESE_OR_KANA
from chatbot.retrieval.characters import character_index

if TYPE_CHECKING:
    from chatbot.evaluation.likelihood import Scorer

Values = dict[str, float | None]
Tokenise = Callable[[str], list[str]]

SEED = 1
# The least share of a script in the letters of a text of that language. A Chinese character stands for about a word,
# and five letters for another one; Japanese has Chinese characters, too.
LEAST_SHARE = 0.1
CHINESE = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
KANA_OR_HANGUL = re.compile(
    r"[\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]"
)
# Letters of scripts that are written without spaces are units one by one, others by the word.
UNIT = re.compile(rf"[{CHINESE_OR_KANA}]|[^\W{CHINESE_OR_KANA}]+|[^\w\s]")
# The number of questions that relevance compares a reply with, its own included.
QUESTIONS = 10
# The other questions of a reply are drawn from a block of at most this many pairs: the time is linear in the pairs.
BLOCK = 2000
# The length of the longest n-grams by which fluency is measured, in characters.
ORDER = 4


class Sample(NamedTuple):
    """A held-out pair."""

    ids: list[int]  # of the question
    question: str
    answer: str


def sample_of(source: list[int], target: Sequence[int], vocabulary: Vocabulary) -> Sample:
    """Return the sample of an encoded pair. Its ids include the turns before the question."""
    question, answer = (vocabulary.text(ids) for ids in (question_of(source, vocabulary), target))
    return Sample(source, question, answer)


def samples_of(corpus: Corpus, most: int | None = None) -> list[Sample]:
    """Return the pairs of a corpus. most: of more pairs, this many are drawn by a seed."""
    rows = np.arange(corpus.pairs)
    if most is not None and most < corpus.pairs:
        rows = np.sort(np.random.default_rng(SEED).choice(rows, most, replace=False))
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
    """Measures replies to the questions of some pairs, whose answers are the references.

    tokens: from a text to its tokens, as in training. scorer: of a model that has learned both directions, for the
    likelihood of the questions given the replies; else None. tokenize: --tokenize, for BLEU.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        vocabulary: Vocabulary,
        tokens: Tokenise,
        scorer: "Scorer | None",
        tokenize: str = AUTO_TOKENIZE,
    ) -> None:
        self.references = [sample.answer for sample in samples]
        self.tokenization = tokenization_of(self.references) if tokenize == AUTO_TOKENIZE else tokenize
        self._questions = [sample.question for sample in samples]
        self._question_ids = Ragged.from_rows([question_of(sample.ids, vocabulary) for sample in samples])
        self._question_characters = np.array([len(text.replace(" ", "")) for text in self._questions], np.int64)
        self._vocabulary = vocabulary
        self._tokens = tokens
        self._scorer = scorer

    def __call__(self, replies: Sequence[str]) -> Values:
        """Return the measures of one reply to each question by name, as in the JSON of `python -m chatbot.evaluation`.

        distinct_N falls as the number of replies grows, so that it compares sets of equal size only, and random replies
        have the value of people's, so that it is read beside relevance. repeated_reply_share is the share of replies
        that equal the reply to another question. reply_entropy is that of whole replies in nats, log n for n different
        ones. relevance_at_1 is the share of replies whose own question ranks first of ten, None with fewer than ten
        pairs: about 0.1 for replies drawn at random, and for replies that repeat their question, since copies do not
        count.
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
        """Return for each question the reference of another question, drawn by a seed; of a single one, its own.

        All their measures that do not depend on the questions equal those of the references.
        """
        order = np.random.default_rng(SEED).permutation(len(self.references))
        others = np.empty_like(order)
        others[order] = np.roll(order, 1)
        return [self.references[other] for other in others]

    def _question_nats_per_character(self, replies: Sequence[str]) -> float | None:
        """Return the nats per character of the questions given the replies. An empty reply is the end symbol alone."""
        if self._scorer is None:
            return None
        sources = Ragged.from_rows([self._vocabulary.ids(self._tokens(reply)) or [EOS] for reply in replies])
        directions = np.full(len(replies), ASK, np.int32)
        pairs = EncodedPairs(sources, self._question_ids, directions, self._question_characters)
        return self._scorer([pairs]).nats_per_character


def distinct(replies: Sequence[Sequence[str]], n: int) -> float:
    """Return the number of different n-grams over that of all (Li et al., 2016), 0 if there are none.

    replies: sequences of tokens, or texts for n-grams of characters.
    """
    counts = Counter(tuple(reply[i : i + n]) for reply in replies for i in range(len(reply) - n + 1))
    return len(counts) / max(1, counts.total())


def top_share(replies: Sequence[str], number: int) -> float:
    """Return the share of the most common replies, this many, in all replies, 0 to 1."""
    return sum(count for _, count in Counter(replies).most_common(number)) / max(1, len(replies))


def tokenization_of(references: Sequence[str]) -> str:
    """Return the tokenisation of BLEU that suits the references, as sacrebleu names it."""
    letters = "".join(filter(str.isalpha, "".join(references)))
    least = max(1, LEAST_SHARE * len(letters))
    if len(KANA_OR_HANGUL.findall(letters)) >= least:
        return CHAR
    return ZH if len(CHINESE.findall(letters)) >= least else ANY


def bleu(replies: Sequence[str], references: Sequence[str], tokenization: str) -> float:
    """Return corpus BLEU by sacrebleu (Post, 2018), 0 to 100; 0 without replies. tokenization: its name there."""
    import sacrebleu
    from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

    if not replies:
        return 0.0
    # By default, a warning is printed for replies that end in " ."
    metric = sacrebleu.BLEU(tokenize=tokenization, force=True)
    score = float(metric.corpus_score(replies, [references]).score)
    for kind in (type(metric.tokenizer), TokenizerRegexp):
        if hasattr(kind.__call__, "cache_clear"):
            kind.__call__.cache_clear()  # of up to 65,536 lines each: 40 MB in a run with many validations
    return score


def chrf(replies: Sequence[str], references: Sequence[str]) -> float:
    """Return the F-score of character n-grams up to 6, chrF2 (Popovic, 2015), 0 to 100; 0 without replies."""
    import sacrebleu

    return float(sacrebleu.corpus_chrf(replies, [references]).score) if replies else 0.0


def ranked_first(questions: Sequence[str], replies: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """Return for each reply 1 if its own question ranks first of ten, else 0, [replies]; None with fewer than ten.

    What a reply copies from its own question is left out. The nine other questions are drawn by a seed. If k questions
    rank first together, each of them counts as 1/k.
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
    """Return a reply without its runs of two or more units that are in its question.

    A unit is a word of a script with spaces, else a character; spaces do not count. A line end, which no question has,
    stands for each run, so that what was before and behind it stays apart.
    """
    units = UNIT.findall(reply)
    of_question = {*itertools.pairwise(UNIT.findall(question))}
    pairs = [pair in of_question for pair in itertools.pairwise(units)]
    copied = [before or behind for before, behind in zip([False, *pairs], [*pairs, False], strict=True)]
    parts = itertools.groupby(zip(units, copied, strict=False), key=lambda marked: marked[1])
    return "".join("\n" if is_copy else "".join(unit for unit, _ in run) for is_copy, run in parts)


class Fluency:
    """Measures how usual the characters of texts are, by n-grams of the replies of a corpus of other people.

    corpus: encoded in a vocabulary of characters. tokens: from a text to the tokens of this corpus, its characters.
    """

    def __init__(self, corpus: Corpus, tokens: Tokenise) -> None:
        self._vocabulary = corpus.vocabulary
        self._tokens = tokens
        self._ngrams = ngrams_of((part.targets for part in corpus.shards), len(corpus.vocabulary), ORDER)

    def __call__(self, texts: Sequence[str]) -> float | None:
        """Return the nats per character of texts, ends included and spaces not counted; None without a character."""
        characters = sum(len(text.replace(" ", "")) for text in texts)
        ids = Ragged.from_rows([self._vocabulary.ids(self._tokens(text)) for text in texts])
        return -float(np.log(probabilities(self._ngrams, ids)).sum()) / characters if characters else None


def probabilities(ngrams: Ngrams, sequences: Ragged) -> npt.NDArray[np.float64]:
    """Return the probability of each id of some sequences, and of EOS after each sequence, by n-grams: [positions]."""
    histories, ids = positions_of(sequences, ngrams.order)
    mixture = NgramMixture(ngrams, weight=0.5)  # the weight is for a mixture with a model's probabilities
    return np.asarray(mixture.probabilities_of(histories, ids[:, None])[:, 0], np.float64)


def precision_measures(
    replies: Sequence[Reply], references: Sequence[str], outside: Sequence[Reply], precision: float
) -> dict[str, Any]:
    """Return the least score with a precision, and what it leaves answered, as measures.

    least_score: the lowest from which on the share `precision` of answers is right; None if there is none.
    answered_share: of the questions that have an answer, those that still get one. precision_curve: for each score, the
    highest first, the share that is answered, that of right answers among all given, and the score.

    replies, references: the best reply to each question, and the right one. outside: the best replies to questions that
    have no right answer.
    """
    given = [(reply.score, reply.text == right, True) for reply, right in zip(replies, references, strict=True)]
    given += [(reply.score, False, False) for reply in outside]
    given.sort(key=lambda one: -one[0])
    curve = list[tuple[float, float, float]]()
    right = 0
    inside = 0
    for number, (score, is_right, is_inside) in enumerate(given, start=1):
        right = right + is_right
        inside = inside + is_inside
        if number == len(given) or given[number][0] < score:  # equal scores are given or not together
            curve.append((inside / len(replies), right / number, score))
    enough = [point for point in curve if point[1] >= precision]
    share, _, least = enough[-1] if enough else (0.0, 0.0, None)
    return {"least_score": least, "answered_share": share, "precision_curve": curve}
