"""Lossless tokenisation for training and chat. Joining the tokens of a text restores the text."""

import dataclasses
import functools
import io
import itertools
import logging
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from chatbot.config.corpus import NONE, PIECES, TEXT_RULES, CorpusSettings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.pieces import SPACE, piece_tokenizer
from chatbot.corpus.reading.charset import detect_charset
from chatbot.display import SHOWN_NAME, listing, one_line
from chatbot.errors import UserError

# Matches a line that begins with a letter, in a language with spaces between words. The line contains no Chinese,
# Japanese, Thai, Lao, Burmese or Khmer characters.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_SPACED_LINE = re.compile(rf"^(?=[^\W\d_])[^{_UNSPACED}\n]+$", re.MULTILINE)

Tokenizer = Callable[[str], list[str]]


def tokenizer(name: str = "jieba", dictionary: str | None = None) -> Tokenizer:
    """Return a tokenizer by name.

    In languages with spaces between words, the first word of a line gets a leading space. Therefore, a word has the
    same token at the beginning of a line and elsewhere.

    Args:
        name: "jieba", "char" or "pieces".
        dictionary: Path of a user dictionary for jieba, or of tokenizer.json for pieces.

    Raises:
        UserError: If the dictionary cannot be used.
    """
    if name == PIECES:
        return piece_tokenizer(str(dictionary))
    return _cached_tokenizer(name, dictionary, None if dictionary is None else read_word_list(dictionary, "dictionary"))


@functools.lru_cache(maxsize=8)
def _cached_tokenizer(name: str, dictionary: str | None, content: object) -> Tokenizer:
    segment: Callable[[str], list[str]] = list
    if name == "jieba":
        segment = jieba_segmenter(dictionary)

    def tokens(text: str) -> list[str]:
        text = _SPACED_LINE.sub(r" \g<0>", text)
        return _with_spaces(segment(text)) if " " in text else segment(text)

    return tokens


def _with_spaces(words: Iterable[str]) -> list[str]:
    """Replace spaces with SPACE. A single space between two words becomes the first character of the second word."""
    tokens: list[str] = []
    space = ""
    for word in words:
        if word == " ":
            space = SPACE
        else:
            tokens.append(space + word.replace(" ", SPACE))
            space = ""
    return tokens


def text_of(tokens: list[str]) -> str:
    """Return the text of a list of tokens, which can be words, single characters or both."""
    return "".join(tokens).replace(SPACE, " ").strip()


def tokens_of(settings: CorpusSettings) -> Callable[[str], list[str]]:
    """Return a function that cleans and tokenises a text. A text without visible characters has no tokens.

    Raises UserError if the dictionary, or the library for a cleaning rule, is missing.
    """
    clean = cleaner(settings.clean)
    tokenise = tokenizer(settings.tokenizer, settings.dictionary)
    return lambda text: tokenise(clean(text))


def check_not_pieces(corpus: CorpusSettings) -> None:
    """Raise UserError if the tokenizer is "pieces", which is supported only in training."""
    if corpus.tokenizer == PIECES:
        raise UserError(f"--tokenizer {PIECES}: only `train --init-from` encodes with the pieces of a pretrained model")


def without_pair_rules(settings: CorpusSettings) -> CorpusSettings:
    """Return the settings without the rules that drop pairs, for validation and evaluation."""
    return dataclasses.replace(
        settings,
        clean=tuple(rule for rule in settings.clean if rule in TEXT_RULES) or (NONE,),
        max_reply_frequency=None,
        block_list=None,
    )


# Chinese word segmentation as in jieba (https://github.com/fxsjy/jieba), computed by its Rust port, rjieba.
#
# rjieba splits some texts differently than jieba. The code below corrects the differences in ASCII words such as
# "C-POP" and in rare Chinese characters. One difference remains, because rjieba rounds probabilities. It affects one of
# 37,779 real utterances.

# Matches characters at which rjieba can differ from jieba: ASCII punctuation in words, and rare Chinese characters.
_DIFFERENT = re.compile(r"[+#&._%\-\u3400-\u4dbf\u9fd6-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# rjieba divides a text into blocks before segmenting it. These characters can be part of a block.
_INSIDE = re.compile(r"[+#&._%\-a-zA-Z0-9\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# Matches a block of jieba, or any other character, which is a word by itself. See jieba.re_han_default.
_BLOCK_OR_CHARACTER = re.compile(r"([\u4e00-\u9fd5a-zA-Z0-9+#&._%\-]+)|.")
# Match Chinese characters, and words of letters and digits. See jieba.finalseg.re_han and re_skip.
_CHINESE = re.compile(r"([\u4e00-\u9fd5]+)")
_LETTERS_AND_DIGITS = re.compile(r"([a-zA-Z0-9]+(?:\.\d+)?%?)")
# Limit for the sum of all frequencies, because rjieba adds them in 64 bits without checking for overflow.
_MAX_TOTAL = 2**63


def jieba_segmenter(dictionary: str | None = None) -> Tokenizer:
    """Return a function that splits a text into the same words as `jieba.lcut`.

    Args:
        dictionary: Path of a user dictionary, with one "word [frequency] [tag]" per line. Its words can contain
            characters at which jieba itself always splits, such as "·" and spaces.

    Raises:
        UserError: If the dictionary cannot be used.
    """
    import rjieba  # importing takes 0.1 seconds

    if dictionary is None:
        return _segmenter(rjieba, rjieba.Jieba.empty().cut)
    words, split_words, whole_words = _load_dictionary(dictionary)
    segment = _segmenter(words, rjieba.Jieba.empty().cut)

    def split(text: str) -> list[str]:
        return [part for word in segment(text) for part in (word if word in split_words else (word,))]

    def keep_whole(text: str) -> list[str]:
        parts = enumerate(is_whole.split(text))  # every second part is a word of the dictionary
        return [word for number, part in parts for word in ([part] if number % 2 else cut(part))]

    cut = split if split_words else segment
    is_whole = _word_pattern(whole_words)
    return keep_whole if whole_words else cut


def _word_pattern(words: Collection[str]) -> "re.Pattern[str]":
    """Return a pattern that matches the longest of these words, but not inside words in Latin script.

    The pattern groups words by their first character, which makes matching faster.
    """
    groups = itertools.groupby(sorted(words, reverse=True), lambda word: word[0])
    patterns = [f"{re.escape(first)}(?:{'|'.join(re.escape(w[1:]) for w in group)})" for first, group in groups]
    return re.compile(rf"(?!(?<=\w)\w)({'|'.join(patterns)})(?!(?<=\w)\w)", re.ASCII)


def _segmenter(dictionary: Any, cut_by_model: Tokenizer) -> Tokenizer:
    """Return a function that segments a text with a dictionary, and unknown words with a hidden Markov model."""
    cut: Callable[..., list[str]] = dictionary.cut
    has_word = dictionary.has_word

    def segment(text: str) -> list[str]:
        words: list[str] = []
        end = 0
        for match in _DIFFERENT.finditer(text):
            begin = match.start()
            if begin < end:
                continue
            while begin > end and _INSIDE.match(text, begin - 1):
                begin -= 1
            words += cut(text[end:begin])
            end = match.end()
            while end < len(text) and _INSIDE.match(text, end):
                end += 1
            words += segment_block_of_rjieba(text[begin:end])
        return words + cut(text[end:]) if end else cut(text)

    def segment_block_of_rjieba(block: str) -> list[str]:
        """Segment a block of rjieba. It is first divided into blocks of jieba, which can be shorter."""
        words: list[str] = []
        for match in _BLOCK_OR_CHARACTER.finditer(block):
            words += segment_block(match.group()) if match.lastindex else [match.group()]
        return words

    def segment_block(block: str) -> list[str]:
        """Segment a block of jieba."""
        words: list[str] = []
        unknown = ""
        for word in cut(block, False):
            # Without the hidden Markov model, rjieba joins unknown letters and digits, but jieba does not.
            if len(word) == 1 or not has_word(word):
                unknown += word
            else:
                words += segment_unknown(unknown)
                words.append(word)
                unknown = ""
        return words + segment_unknown(unknown)

    def segment_unknown(characters: str) -> list[str]:
        """Segment characters that are not part of a dictionary word, with the hidden Markov model."""
        if len(characters) < 2 or has_word(characters):
            return list(characters)
        words: list[str] = []
        for number, part in enumerate(_CHINESE.split(characters)):
            words += cut_by_model(part) if number % 2 else filter(None, _LETTERS_AND_DIGITS.split(part))
        return words

    return segment


def _load_dictionary(path: str) -> tuple[Any, frozenset[str], frozenset[str]]:
    """Combine jieba's dictionary with a user dictionary.

    Returns:
        All words of both dictionaries; the words that the user dictionary removes by a frequency of 0; and its words
        that jieba would always split, because they contain special characters.
    """
    import jieba  # importing takes 0.5 seconds, and only user dictionaries need jieba
    import rjieba
    from jieba import finalseg

    jieba.setLogLevel(logging.WARNING)
    text, encoding = read_word_list(path, "dictionary")
    loaded = jieba.Tokenizer()
    # `initialize` is not called, because it would trust a cache file in the temporary folder, which any user can write.
    loaded.FREQ, loaded.total = loaded.gen_pfdict(loaded.get_dict_file())
    loaded.initialized = True
    # jieba adds the words to split to a global set. This set is replaced while the dictionary is loaded.
    global_words = finalseg.Force_Split_Words
    finalseg.Force_Split_Words = set()
    try:
        loaded.load_userdict(io.StringIO(text))
        if loaded.total >= _MAX_TOTAL:
            raise OverflowError(f"the frequencies add up to {loaded.total:,}")
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: not a jieba dictionary in {encoding}: {error}") from None
    finally:
        removed = finalseg.Force_Split_Words
        finalseg.Force_Split_Words = global_words
    words = rjieba.Jieba.empty()
    for word, frequency in loaded.FREQ.items():
        if frequency:  # 0 means that the entry is only a prefix of a word, or that the user removed the word
            words.add_word(word, frequency, None)
    # jieba's total includes frequencies that were replaced later. Add the difference to a newline, which has no effect.
    words.add_word("\n", loaded.total - sum(loaded.FREQ.values()), None)
    whole = {
        word for word, *_ in _dictionary_entries(text) if loaded.FREQ[word] and not jieba.re_han_default.fullmatch(word)
    }
    return words, frozenset(word for word in removed if not loaded.FREQ[word]), frozenset(whole)


def _dictionary_entries(dictionary: str) -> list[tuple[str, str, str]]:
    """Return the word, frequency and tag in each line of a user dictionary, as parsed by jieba."""
    import jieba

    lines = filter(None, map(str.strip, io.StringIO(dictionary)))
    return [jieba.re_userdict.match(line).groups("") for line in lines]


def print_unused_words(settings: CorpusSettings) -> None:
    """Print the words of --dictionary that have no effect, if there are any.

    A word has no effect if it is still split, for example because its frequency is low, or if cleaning changes it.
    """
    if settings.dictionary is None or settings.tokenizer == PIECES:
        return
    tokens = tokens_of(settings)
    default_tokens = tokenizer()
    entries = _dictionary_entries(read_word_list(settings.dictionary, "dictionary")[0])
    unused = []
    for word, frequency, tag in entries:
        is_removed = bool(frequency) and not int(frequency)
        is_whole = [text_of([token]) for token in tokens(word)] == [word]
        is_known = bool(frequency) != bool(tag) and word.isascii() and len(default_tokens(word)) == 1
        if not is_removed and (is_known or not is_whole):
            unused.append(one_line(f"{word}{frequency}{tag}", SHOWN_NAME))
    if unused:
        name = one_line(Path(settings.dictionary).name, 2 * SHOWN_NAME)
        number = f"{len(unused):,} of {len(entries):,}"
        remedy = "a word with a space needs a frequency, a rare word a higher one"
        print(listing(f"{name}: lines without effect: {number}; {remedy}: ", unused))


def read_word_list(path: str, kind: str) -> tuple[str, str]:
    """Read a file, and return its text and the name of its charset, which is detected.

    Args:
        path: Path of the file.
        kind: Description of the file in error messages, such as "block list".

    Raises:
        UserError: If the file cannot be read or decoded.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {kind} cannot be read ({error.strerror})") from None
    codec, name = detect_charset(content, path)
    text = content.decode(codec, "replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if "\ufffd" in line:
            raise UserError(
                f"{path}: {kind} read as {name}, but line {number} is not; save it as UTF-8, with one word per line"
            )
    return text, name
