"""Text to tokens without loss, in the same way for corpora and for chat: joining the tokens gives the text back."""

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

# A line in a language with spaces between its words: it begins with a letter, and has no Chinese, Japanese, Thai, Lao,
# Burmese or Khmer character.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_SPACED_LINE = re.compile(rf"^(?=[^\W\d_])[^{_UNSPACED}\n]+$", re.MULTILINE)

Tokenizer = Callable[[str], list[str]]


def tokenizer(name: str = "jieba", dictionary: str | None = None) -> Tokenizer:
    """Return the tokenizer. name: "jieba", "char" or "pieces". dictionary: the path of a user dictionary for jieba, or
    of the tokenizer.json of pieces.

    The first word of a line in a language with spaces follows a space, too, so that it is the same token as elsewhere.

    It is made once for each content of the dictionary. Raises UserError when the dictionary cannot be used.
    """
    if name == PIECES:
        return piece_tokenizer(str(dictionary))
    return _made(name, dictionary, None if dictionary is None else read_word_list(dictionary, "dictionary"))


@functools.lru_cache(maxsize=8)
def _made(name: str, dictionary: str | None, content: object) -> Tokenizer:
    segment: Callable[[str], list[str]] = list
    if name == "jieba":
        segment = jieba_segmenter(dictionary)

    def tokens(text: str) -> list[str]:
        text = _SPACED_LINE.sub(r" \g<0>", text)
        return _with_spaces(segment(text)) if " " in text else segment(text)

    return tokens


def _with_spaces(words: Iterable[str]) -> list[str]:
    """Replace each space by SPACE, at the beginning of the next word or in a word."""
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
    """Return the text of these tokens, which may be words, single characters or both."""
    return "".join(tokens).replace(SPACE, " ").strip()


def tokens_of(settings: CorpusSettings) -> Callable[[str], list[str]]:
    """Return the function from a text to its tokens. A text without visible characters has no tokens.

    Raises UserError when the dictionary or the library of a rule is missing.
    """
    clean = cleaner(settings.clean)
    tokenise = tokenizer(settings.tokenizer, settings.dictionary)
    return lambda text: tokenise(clean(text))


def check_no_pieces(corpus: CorpusSettings) -> None:
    """Raise UserError for the tokens of a published model, which training alone knows."""
    if corpus.tokenizer == PIECES:
        raise UserError(f"--tokenizer {PIECES}: train.py --init-from encodes with the tokens of the published model")


def without_pair_rules(settings: CorpusSettings) -> CorpusSettings:
    """Return the settings without the rules that drop pairs, for validation and evaluation."""
    return dataclasses.replace(
        settings,
        clean=tuple(rule for rule in settings.clean if rule in TEXT_RULES) or (NONE,),
        max_reply_frequency=None,
        block_list=None,
    )


# Chinese word segmentation as jieba does it (https://github.com/fxsjy/jieba), computed by its Rust port, rjieba.
#
# rjieba uses jieba's dictionary, its search for the most probable path, and its hidden Markov model of unknown words.
# It differs from jieba in three ways. It keeps ASCII runs such as "C-POP" whole, and it extends blocks to rare Chinese
# characters; both are corrected here. It also rounds the model's probabilities to six decimals, which changes the
# result of ties and near ties: in one of 37,779 real utterances (LCCC, CrossWOZ, KdConv), "感动常在啊", and for rare
# characters that are repeated five times or more.

# Characters at which rjieba may differ from jieba: ASCII punctuation in words, and Chinese characters beyond U+9FD5.
_DIFFERENT = re.compile(r"[+#&._%\-\u3400-\u4dbf\u9fd6-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# The characters of rjieba's blocks.
_INSIDE = re.compile(r"[+#&._%\-a-zA-Z0-9\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# jieba.re_han_default: blocks are segmented; every other character is a word.
_BLOCK_OR_CHARACTER = re.compile(r"([\u4e00-\u9fd5a-zA-Z0-9+#&._%\-]+)|.")
# jieba.finalseg.re_han and re_skip: the model is for Chinese characters; a number keeps its decimals.
_CHINESE = re.compile(r"([\u4e00-\u9fd5]+)")
_LETTERS_AND_DIGITS = re.compile(r"([a-zA-Z0-9]+(?:\.\d+)?%?)")
# rjieba adds frequencies in 64 bits without a check.
_MAX_TOTAL = 2**63


def jieba_segmenter(dictionary: str | None = None) -> Tokenizer:
    """Return the function from a text without lone surrogates to the words of `jieba.lcut`.

    dictionary: path of a user dictionary, with one "word [frequency] [tag]" on a line. Its words with characters at
    which jieba always cuts, such as "·" and spaces, are words here.
    Raises UserError when the dictionary cannot be used.
    """
    import rjieba  # a tenth of a second

    if dictionary is None:
        return _segmenter(rjieba, rjieba.Jieba.empty().cut)
    words, split_words, whole_words = _load(dictionary)
    segment = _segmenter(words, rjieba.Jieba.empty().cut)

    def split(text: str) -> list[str]:
        return [part for word in segment(text) for part in (word if word in split_words else (word,))]

    def keep_whole(text: str) -> list[str]:
        parts = enumerate(is_whole.split(text))  # every second one is a word of the dictionary
        return [word for number, part in parts for word in ([part] if number % 2 else cut(part))]

    cut = split if split_words else segment
    is_whole = _pattern_of(whole_words)
    return keep_whole if whole_words else cut


def _pattern_of(words: Collection[str]) -> "re.Pattern[str]":
    """Return the pattern of the words, the longest that fits. In Latin script it finds no parts of words.

    Words are grouped by their first characters, since alternatives are tried one after the other.
    """
    groups = itertools.groupby(sorted(words, reverse=True), lambda word: word[0])
    patterns = [f"{re.escape(first)}(?:{'|'.join(re.escape(w[1:]) for w in group)})" for first, group in groups]
    return re.compile(rf"(?!(?<=\w)\w)({'|'.join(patterns)})(?!(?<=\w)\w)", re.ASCII)


def _segmenter(dictionary: Any, cut_by_model: Tokenizer) -> Tokenizer:
    """Return the segmenter by a dictionary of rjieba's and by its model, for which every word is unknown."""
    cut: Callable[..., list[str]] = dictionary.cut
    has_word = dictionary.has_word

    def segment(text: str) -> list[str]:
        words: list[str] = []
        done = 0
        for match in _DIFFERENT.finditer(text):
            begin = match.start()
            if begin < done:
                continue
            while begin > done and _INSIDE.match(text, begin - 1):
                begin -= 1
            words += cut(text[done:begin])
            done = match.end()
            while done < len(text) and _INSIDE.match(text, done):
                done += 1
            words += segment_block_of_rjieba(text[begin:done])
        return words + cut(text[done:]) if done else cut(text)

    def segment_block_of_rjieba(block: str) -> list[str]:
        """Return the words of a block of rjieba's, which may contain several of jieba's."""
        words: list[str] = []
        for match in _BLOCK_OR_CHARACTER.finditer(block):
            words += segment_block(match.group()) if match.lastindex else [match.group()]
        return words

    def segment_block(block: str) -> list[str]:
        """Return the words of one of jieba's blocks."""
        words: list[str] = []
        unknown = ""
        for word in cut(block, False):
            # Without its model, rjieba joins letters and digits that are single characters on the path.
            if len(word) == 1 or not has_word(word):
                unknown += word
            else:
                words += segment_unknown(unknown)
                words.append(word)
                unknown = ""
        return words + segment_unknown(unknown)

    def segment_unknown(characters: str) -> list[str]:
        """Segment adjacent characters that are single words on the most probable path, by the hidden Markov model."""
        if len(characters) < 2 or has_word(characters):
            return list(characters)
        words: list[str] = []
        for number, part in enumerate(_CHINESE.split(characters)):
            words += cut_by_model(part) if number % 2 else filter(None, _LETTERS_AND_DIGITS.split(part))
        return words

    return segment


def _load(path: str) -> tuple[Any, frozenset[str], frozenset[str]]:
    """Return (the words of jieba and of the user dictionary, words to be split, words that jieba always cuts).

    jieba splits words of frequency 0 where its model finds them.
    """
    import jieba  # half a second, which only a user dictionary needs
    import rjieba
    from jieba import finalseg

    jieba.setLogLevel(logging.WARNING)
    text, encoding = read_word_list(path, "dictionary")
    loaded = jieba.Tokenizer()
    # Not `initialize`, which trusts a file in the system's temporary folder that any user may have written.
    loaded.FREQ, loaded.total = loaded.gen_pfdict(loaded.get_dict_file())
    loaded.initialized = True
    # jieba collects the words to be split in one set for all tokenizers.
    others = finalseg.Force_Split_Words
    finalseg.Force_Split_Words = set()
    try:
        loaded.load_userdict(io.StringIO(text))
        if loaded.total >= _MAX_TOTAL:
            raise OverflowError(f"the frequencies add up to {loaded.total:,}")
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: not a jieba dictionary in {encoding}: {error}") from None
    finally:
        removed = finalseg.Force_Split_Words
        finalseg.Force_Split_Words = others
    words = rjieba.Jieba.empty()
    for word, frequency in loaded.FREQ.items():
        if frequency:  # 0: the beginning of a word, or a word that the user removed
            words.add_word(word, frequency, None)
    # jieba's total counts a word's former frequencies, too. No block has a line end in it.
    words.add_word("\n", loaded.total - sum(loaded.FREQ.values()), None)
    whole = {word for word, *_ in _entries(text) if loaded.FREQ[word] and not jieba.re_han_default.fullmatch(word)}
    return words, frozenset(word for word in removed if not loaded.FREQ[word]), frozenset(whole)


def _entries(dictionary: str) -> list[tuple[str, str, str]]:
    """Return the word, the frequency and the tag of each line of a user dictionary, as jieba reads them."""
    import jieba

    lines = filter(None, map(str.strip, io.StringIO(dictionary)))
    return [jieba.re_userdict.match(line).groups("") for line in lines]


def print_unused_words(settings: CorpusSettings) -> None:
    """Print one line with the words of --dictionary that change nothing, if there are some.

    They are cut nevertheless, as a rare word is, or cleaning changes them. Or a part of the word was taken for its
    frequency or tag ("iPhone 16"), and the rest is a word anyway.
    """
    if settings.dictionary is None or settings.tokenizer == PIECES:
        return
    tokens = tokens_of(settings)
    usual_tokens = tokenizer()
    entries = _entries(read_word_list(settings.dictionary, "dictionary")[0])
    unused = []
    for word, frequency, tag in entries:
        is_removed = bool(frequency) and not int(frequency)
        is_whole = [text_of([token]) for token in tokens(word)] == [word]
        is_usual = bool(frequency) != bool(tag) and word.isascii() and len(usual_tokens(word)) == 1
        if not is_removed and (is_usual or not is_whole):
            unused.append(one_line(f"{word}{frequency}{tag}", SHOWN_NAME))
    if unused:
        name = one_line(Path(settings.dictionary).name, 2 * SHOWN_NAME)
        number = f"{len(unused):,} of {len(entries):,}"
        remedy = "a word with a space needs a frequency, a rare word a higher one"
        print(listing(f"{name}: lines without effect: {number}; {remedy}: ", unused))


def read_word_list(path: str, kind: str) -> tuple[str, str]:
    """Return (the text of the file, the displayed name of its charset), which is detected as that of data.

    kind: for messages, such as "block list". Raises UserError when the file cannot be read or decoded.
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
                f"{path}: {kind} read as {name}, but line {number} is not; save it as UTF-8, one word a line"
            )
    return text, name
