"""From files to encoded pairs on disk: what training, validation and evaluation read."""

import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from chatbot.config.corpus import AUTO, NONE, CorpusSettings, EncodingSettings
from chatbot.corpus.cache import content_key, key_of, make_once
from chatbot.corpus.chunks import Counts, add_up, count_chunk, load_chunk, token_texts
from chatbot.corpus.files import CorpusFiles, TokenisedFiles, corpus_files, renamed_reports, tokenise
from chatbot.corpus.history import NO_HISTORY, History
from chatbot.corpus.pair_ids import Hashes, Lengths, Mask
from chatbot.corpus.reading.display import counted
from chatbot.corpus.reading.files.sources import Parts, find_parts, find_sources
from chatbot.corpus.reading.files.text_file import open_text_files
from chatbot.corpus.reading.report import Report
from chatbot.corpus.selection import TRAINING, VALIDATION, Selection, select
from chatbot.corpus.shards import (
    IdTable,
    ShardArrays,
    Shards,
    by_shard,
    count_lengths,
    dtype_for,
    encode_chunk,
    shards_needed,
    write_shards,
)
from chatbot.corpus.tokenizer import without_pair_rules
from chatbot.corpus.vocabulary import (
    MIN_COUNT,
    Vocabulary,
    build_vocabulary,
    load_vocabulary,
    longer_token_capacity,
)
from chatbot.corpus.workers import in_order, progress_bar, worker_pool
from chatbot.errors import UserError

# Increase this whenever the same tokens and selection give other shards, or another description, than before.
VERSION = 5
# Fewer chunks are counted and encoded in this process, before worker processes would have started.
SERIAL_CHUNKS = 20

VOCABULARY = "vocabulary.txt"
DESCRIPTION = "corpus.json"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Encoded pairs, their vocabulary, and for each file a report of what was read and dropped."""

    shards: Shards
    vocabulary: Vocabulary
    reports: list[Report]
    pairs: int
    fingerprint: str  # equal for corpora with the same pairs, order and ids


def encode(
    files: CorpusFiles, selection: Selection, vocabulary: Vocabulary | int, history: History = NO_HISTORY
) -> Corpus:
    """Encode the selected pairs of the files, or read them from the cache.

    Raises UserError when no pair is left, except of a validation part, which may be empty.

    vocabulary: the vocabulary to use, or the maximum size of a new vocabulary that is built from the pairs.
    """
    turns = history.turns
    folder = corpus_folder(files, selection, vocabulary, turns)
    with make_once(folder) as part:
        if part:
            with worker_pool() as pool:
                tokenised = tokenise(files, pool)  # reads, cleans and tokenises all files: most of the time
                kept, dropped = select(tokenised.hashes(turns), selection, tokenised.usable())
                reports = complete_reports(tokenised, dropped)
                if selection.part != VALIDATION:
                    check_not_empty(int(kept.sum()), reports)
                if isinstance(vocabulary, int):
                    counts = count_tokens(tokenised, kept, pool)
                    vocabulary = vocabulary_of_counts(tokenised, counts, vocabulary, marks=turns > 0)
                vocabulary.save(part / VOCABULARY)
                shards = shards_needed(int(kept.sum()))
                encoded = _encoded(tokenised, kept, part, shards, turns, pool)
                write_shards(part, shards, encoded)
                write_description(part, vocabulary, int(kept.sum()), reports)
    return load_corpus(folder, files, history)


def corpus_folder(files: CorpusFiles, selection: Selection, vocabulary: Vocabulary | int, turns: int = 0) -> Path:
    """Return the folder of the cache for this corpus. turns: of history."""
    selected = {**dataclasses.asdict(selection), "held_out": sorted(selection.held_out)}
    key = key_of(
        version=VERSION,
        tokens=files.key,
        selection=selected,
        vocabulary=vocabulary if isinstance(vocabulary, int) else vocabulary.fingerprint(),
        **({"history": turns} if turns else {}),
    )
    return files.cache / f"encoded-{key}"


def write_description(folder: Path, vocabulary: Vocabulary, pairs: int, reports: Sequence[Report]) -> None:
    """Add the description that `load_corpus` reads to a folder of shards and their vocabulary."""
    lengths = count_lengths(folder, shards_needed(pairs))
    description = {
        "fingerprint": key_of(files=[(path.name, content_key(path)) for path in sorted(folder.iterdir())]),
        "shards": shards_needed(pairs),
        "dtype": dtype_for(vocabulary).name,
        "pairs": pairs,
        "lengths": {"sides": lengths.sides.tolist(), "counts": lengths.counts.tolist()},
        "reports": [dataclasses.asdict(report) for report in reports],
    }
    (folder / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")


def load_corpus(folder: Path, files: CorpusFiles, history: History = NO_HISTORY) -> Corpus:
    """Load the corpus in a folder of the cache. files: for the present names of the files."""
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    lengths = Lengths(*(np.asarray(description["lengths"][name], np.int64) for name in ("sides", "counts")))
    vocabulary = load_vocabulary(folder / VOCABULARY)
    shards = Shards(folder, description["shards"], description["dtype"], lengths)
    if history.turns:
        shards = dataclasses.replace(shards, first_mark=vocabulary.first_mark, source_length=history.max_length)
    return Corpus(
        shards,
        vocabulary,
        renamed_reports(description["reports"], files.sources),
        description["pairs"],
        description["fingerprint"],
    )


def complete_reports(tokenised: TokenisedFiles, dropped: Mapping[str, Mask]) -> list[Report]:
    """Return the reports of the files, with the pairs that the selection dropped, by reason."""
    reports = copy.deepcopy(tokenised.reports)
    for reason, mask in dropped.items():
        for report, count in zip(reports, tokenised.by_source(mask), strict=True):
            if count:
                report.drop(reason, count=count)
    return reports


def check_not_empty(pairs: int, reports: Sequence[Report]) -> None:
    """Raise UserError when no pair is left, with the reasons for each file."""
    if not pairs:
        raise UserError("; ".join(map(_why_empty, reports)) + ". See docs/data.md for formats and cleaning")


def _why_empty(report: Report) -> str:
    reasons = ", ".join(report.lines())
    if report.pairs:
        return f"{report.file}: {counted(report.pairs, 'pair')}, none of them left: {reasons}"
    nothing = f"nothing in it is {' or '.join(report.formats)}" if report.formats else "the file is empty"
    return f"{report.file}: no question-answer pairs: {reasons or nothing}"


def count_tokens(tokenised: TokenisedFiles, kept: Mask, pool: ProcessPoolExecutor) -> Counts:
    """Count the tokens of the pairs that are kept."""
    tasks = zip((chunk.path for chunk in tokenised.chunks), tokenised.by_chunk(kept), strict=True)
    return add_up(in_order(_count, tasks, pool if len(tokenised.chunks) > SERIAL_CHUNKS else None))


def vocabulary_of_counts(tokenised: TokenisedFiles, counts: Counts, size: int, marks: bool = False) -> Vocabulary:
    """Return a vocabulary of at most this size, built from the counted tokens. marks: whether to add MARKS."""
    texts = token_texts(vocabulary_hashes(counts, size), (chunk.path for chunk in tokenised.chunks))
    return vocabulary_from(counts, texts, size, marks)


def vocabulary_hashes(counts: Counts, size: int) -> Hashes:
    """Return the hashes of the longer tokens that may enter a vocabulary of this size."""
    return counts.most_frequent(longer_token_capacity(size, counts.characters), MIN_COUNT)


def vocabulary_from(counts: Counts, texts: Mapping[int, str], size: int, marks: bool = False) -> Vocabulary:
    """Return a vocabulary of at most this size. texts: the tokens of `vocabulary_hashes`, by hash."""
    by_hash = zip(counts.hashes.tolist(), counts.counts.tolist(), strict=True)
    return build_vocabulary(counts.characters, {texts[h]: count for h, count in by_hash if h in texts}, size, marks)


def _encoded(
    tokenised: TokenisedFiles, kept: Mask, folder: Path, shards: int, turns: int, pool: ProcessPoolExecutor
) -> Iterator[tuple[int, ShardArrays]]:
    """Yield (shard, pairs) for the kept pairs, chunk by chunk."""
    masks = tokenised.by_chunk(kept)
    tasks = ((chunk.path, mask, folder, shards, turns) for chunk, mask in zip(tokenised.chunks, masks, strict=True))
    with progress_bar("Encoding", int(kept.sum()), " pairs") as bar:
        for parts in in_order(_encode, tasks, pool if len(masks) > SERIAL_CHUNKS else None):
            yield from parts
            bar.update(sum(len(arrays.lengths) for _, arrays in parts))


def _count(path: Path, kept: Mask) -> Counts:
    return count_chunk(load_chunk(path), kept)


def _encode(path: Path, kept: Mask, folder: Path, shards: int, turns: int) -> list[tuple[int, ShardArrays]]:
    chunk = load_chunk(path)
    return list(by_shard(encode_chunk(chunk, kept, _id_table(folder), turns), chunk.pair_hashes[kept], shards))


@functools.lru_cache(1)
def _id_table(folder: Path) -> IdTable:
    """Return the id table of the vocabulary in a folder, read once in each process."""
    return IdTable(load_vocabulary(folder / VOCABULARY))


def training_files(settings: CorpusSettings, history: int = 0) -> CorpusFiles:
    """Return the files to train on; of a folder, an archive or a JSON object with parts, the training part.

    history: the maximum number of turns before a question. Raises UserError when a file cannot be used.
    """
    return corpus_files(_parts(settings).training, settings, history)


def left_out(settings: CorpusSettings) -> list[str]:
    """Return the names of the test parts of the files to train on, which are not read."""
    return _parts(settings).left_out


def validation_file(settings: CorpusSettings, encoding: EncodingSettings) -> CorpusFiles | None:
    """Return the file of --validation FILE, or with auto the validation parts of the files to train on; None without.

    Rules that drop pairs do not apply. Raises UserError when a file cannot be used.
    """
    if encoding.validation == AUTO:
        return validation_parts(settings, encoding.history)
    if encoding.validation == NONE:
        return None
    return corpus_files(find_sources([encoding.validation]), without_pair_rules(settings), encoding.history)


def validation_parts(settings: CorpusSettings, history: int = 0) -> CorpusFiles | None:
    """Return the validation parts of the files to train on, None if they have none.

    history: the maximum number of turns before a question. Rules that drop pairs do not apply. Raises UserError when a
    file cannot be used.
    """
    sources = _parts(settings).validation
    return corpus_files(sources, without_pair_rules(settings), history) if sources else None


def _parts(settings: CorpusSettings) -> Parts:
    return find_parts(settings.data, settings.source_file, settings.target_file)


def training_selection(settings: CorpusSettings, encoding: EncodingSettings) -> Selection:
    """Return the selection of the training pairs. Tokenises validation files, whose pairs are excluded."""
    held_out: frozenset[int] = frozenset()
    part = TRAINING if encoding.validation == AUTO else None
    if files := validation_file(settings, encoding):
        part = None
        with worker_pool() as pool:
            held_out = frozenset(tokenise(files, pool).hashes().pairs.tolist())
    return dataclasses.replace(Selection.of(settings), held_out=held_out, part=part)


def training_set(
    settings: CorpusSettings,
    encoding: EncodingSettings,
    vocabulary: Vocabulary | None = None,
    max_length: int | None = None,
) -> Corpus:
    """Return the encoded pairs to train on, read from the cache if possible. Raises UserError when none is left.

    vocabulary: None: a new one is built from the pairs. max_length: of the sources with history.
    """
    selection, history = training_selection(settings, encoding), History(encoding.history, max_length)
    files = training_files(settings, encoding.history)
    return encode(files, selection, vocabulary or encoding.vocabulary_size, history)


def validation_set(
    settings: CorpusSettings, encoding: EncodingSettings, vocabulary: Vocabulary, max_length: int | None = None
) -> Corpus | None:
    """Return the encoded pairs to validate on, or None if there are none. Raises UserError for an unusable file.

    max_length: of the sources with history.
    """
    history = History(encoding.history, max_length)
    if files := validation_file(settings, encoding):
        return encode(files, Selection(), vocabulary, history)
    if encoding.validation == NONE:
        return None
    files = training_files(settings, encoding.history)
    held_out = encode(files, Selection("duplicates" in settings.clean, part=VALIDATION), vocabulary, history)
    return held_out if held_out.pairs else None


SPACES = "spaces"  # the cleaning rule
# Texts of an archive that are examined, and characters of each.
TEXTS, EXAMINED = 8, 50_000
# An utterance is cut into words if spaces are at this share of the places between its Chinese characters, no word is
# longer, and one is a single character: words have 1.6 characters on average. In other text, spaces separate clauses or
# keywords.
FEWEST_CHARACTERS, LEAST_SHARE, LONGEST_WORD = 6, 0.4, 6
# A corpus is cut into words if at least this many of its first utterances are, and this share of them: in some corpora
# only the questions are.
FEWEST_UTTERANCES, LEAST_UTTERANCES = 5, 0.4

_UTTERANCE = re.compile(r'[^\t\r\n",]+')
_CHINESE = re.compile("[\u4e00-\u9fff]+")
_SPACED = re.compile("(?<=[\u4e00-\u9fff]) +(?=[\u4e00-\u9fff])")
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")  # of JSON


def without_word_spaces(settings: CorpusSettings) -> CorpusSettings:
    """Return the settings, with the cleaning rule "spaces" if a file has spaces between its Chinese words.

    The beginning of each file decides; one line names the first such file. `--clean none` adds no rule.
    Raises UserError when a file cannot be used.
    """
    if SPACES in settings.clean or NONE in settings.clean:
        return settings
    for source in training_files(settings).sources:
        if source.kind != "chatterbot" and any(_is_cut(path, source.name, settings) for path in source.paths):
            print(f"{source.name}: the spaces between its Chinese words are removed, as in chat (--clean {SPACES}).")
            return dataclasses.replace(settings, clean=(*settings.clean, SPACES))
    return settings


def _is_cut(path: Path, name: str, settings: CorpusSettings) -> bool:
    with contextlib.closing(open_text_files(path, name, Report(), encoding=settings.encoding)) as texts:
        return any(is_cut_into_words(text.sample) for text in itertools.islice(texts, TEXTS))


def is_cut_into_words(text: str) -> bool:
    """Return whether spaces separate the Chinese words of a text, whatever its format."""
    text = text[:EXAMINED]
    if "\\u" in text:
        text = _ESCAPED.sub(lambda match: chr(int(match.group(1), 16)), text)
    cut = whole = 0
    for utterance in _UTTERANCE.findall(text):
        lengths = [len(run) for run in _CHINESE.findall(utterance)]
        if sum(lengths) >= FEWEST_CHARACTERS:
            spaces = len(_SPACED.findall(utterance))
            is_cut = spaces >= LEAST_SHARE * (sum(lengths) - 1) and max(lengths) <= LONGEST_WORD and min(lengths) == 1
            cut, whole = cut + is_cut, whole + (not is_cut)
    return cut >= FEWEST_UTTERANCES and cut >= LEAST_UTTERANCES * (cut + whole)
