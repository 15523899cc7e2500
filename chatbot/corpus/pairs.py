"""From files to cleaned pairs of words: what training, validation and evaluation all read."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from chatbot.corpus.cleaning import clean
from chatbot.corpus.readers import Pair, read_chatterbot, read_file
from chatbot.corpus.report import Report
from chatbot.corpus.tokenizer import words
from chatbot.errors import UserError

WordPair = tuple[list[str], list[str]]


def read_pairs(files: Sequence[str], report: Report) -> list[WordPair]:
    """The pairs of the files, or of the ChatterBot corpus when there are none, cleaned and cut into words.

    Raises UserError when a file cannot be used or no pair is left.
    """
    pairs: list[WordPair] = []
    name = ", ".join(files) or "the ChatterBot corpus"
    texts = _pairs_of(files, report)
    for question, answer in tqdm(texts, desc="Reading", unit=" pairs", leave=False, delay=1):
        pair = words(clean(question)), words(clean(answer))
        if all(pair):
            pairs.append(pair)
        else:
            report.drop("pairs with an empty side")
    if not pairs:
        reasons = "; ".join(report.lines()) or "the file is empty"
        raise UserError(f"{name}: no question-answer pairs: {reasons}. See data/README.md for the formats")
    return pairs


def _pairs_of(files: Sequence[str], report: Report) -> Iterator[Pair]:
    if not files:
        yield from read_chatterbot()
    for file in files:
        yield from read_file(file, report)


def without(pairs: list[WordPair], held_out: list[WordPair], report: Report) -> list[WordPair]:
    """The pairs that are not held out: what is validated on must not be trained on.

    Raises UserError when none is left.
    """
    keys = {_key(pair) for pair in held_out}
    kept = [pair for pair in pairs if _key(pair) not in keys]
    if len(kept) < len(pairs):
        report.drop("pairs that are in the validation file too", count=len(pairs) - len(kept))
    if not kept:
        raise UserError("--data: every pair is in the validation file too; validate on other pairs")
    return kept


def _key(pair: WordPair) -> Pair:
    return "".join(pair[0]), "".join(pair[1])


def count_words(pairs: list[WordPair]) -> Counter[str]:
    """How often each word occurs, in questions and answers together."""
    return Counter(word for pair in pairs for side in pair for word in side)
