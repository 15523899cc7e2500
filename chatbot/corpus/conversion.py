"""Conversion of a corpus to a text with one pair or conversation per line, which shows what training reads."""

import html
import json
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, compress, cycle

import numpy as np

from chatbot.config.corpus import PairsSettings
from chatbot.corpus.chunks import clean_pairs, hash_texts
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.files import read_in_chunks, training_files, without_word_spaces
from chatbot.corpus.history import pair_hashes
from chatbot.corpus.reading.marked_text import split_by_speaker
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.turns import NEW, NEXT, OVERLAP, Pair
from chatbot.corpus.selection import Selection, select
from chatbot.corpus.workers import progress_bar
from chatbot.display import one_line
from chatbot.errors import UserError

_MEMORY = 2**24  # maximum number of characters to keep in memory instead of a file
_SPACES = str.maketrans(dict.fromkeys("\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))


def convert(settings: PairsSettings) -> None:
    """Write the pairs of all files to standard output, and notes on omitted content to standard error.

    The pairs are written only after all files have been read without an error.

    Raises:
        UserError: If a file cannot be read or changes while it is being read, or if there are no pairs.
    """
    files = training_files(without_word_spaces(settings.corpus, sys.stderr))
    size = sum(size for _, size in files.dates)
    hashes = [np.zeros(0, np.uint64)]  # hashes of the questions and answers in the output
    with tempfile.SpooledTemporaryFile(_MEMORY, "w+", encoding="utf-8", newline="") as buffer:
        with progress_bar("Reading", size, "B") as bar:
            before = 0
            for source in files.sources:
                report = Report(source.name)
                for first, raw in read_in_chunks(source, report, files.options):
                    pairs = list(clean_pairs(raw, first, report, files.settings))
                    if settings.json:
                        lines = conversations(pairs, files.settings.clean)
                        buffer.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
                    else:
                        buffer.writelines(f"{q.translate(_SPACES)}\t{a.translate(_SPACES)}\n" for q, a, _ in pairs)
                        hashes.append(hash_texts(text for pair in pairs for text in pair[:2]))
                    bar.update(before + report.read_bytes - bar.n)
                before += report.read_bytes
                for line in (*(f"left out: {line}" for line in report.lines()), *report.notes()):
                    print(f"{source.name}: {line}", file=sys.stderr)
        files.check_unchanged()
        if not buffer.tell():
            names = one_line(", ".join(source.name for source in files.sources), 80)
            raise UserError(f"{names}: no pairs; the lines above list what was left out")
        buffer.seek(0)
        if settings.json:
            shutil.copyfileobj(buffer, sys.stdout)
        else:
            selected, _ = select(
                pair_hashes(np.concatenate(hashes), np.zeros(0, np.uint8), 0), Selection.from_settings(files.settings)
            )
            sys.stdout.writelines(compress(buffer, selected))


def conversations(pairs: Iterable[Pair], rules: Collection[str]) -> Iterator[object]:
    """Yield each conversation as a JSON value.

    Args:
        pairs: Pairs with links.
        rules: Cleaning rules that will be applied when the output is read.
    """
    without_markup = cleaner([rule for rule in rules if rule == "markup"])
    turns: list[str] = []
    kind = NEW  # NEW after the first pair of a conversation, then OVERLAP or NEXT
    for question, answer, link in chain(pairs, (("", "", NEW),)):
        if link == OVERLAP and kind != NEXT and turns and turns[-1] == question:
            turns.append(answer)
            kind = OVERLAP
        elif link == NEXT and kind != OVERLAP and turns:
            turns += question, answer
            kind = NEXT
        else:
            if turns:
                texts = [text if without_markup(text) == text else html.escape(text, quote=False) for text in turns]
                yield _conversation(texts, kind)
            turns = [question, answer]
            kind = NEW


def _conversation(turns: list[str], kind: int) -> object:
    """Return a conversation as a list of utterances, or as messages with roles.

    Messages with roles are used if utterances begin with labels such as "Note:", which could be mistaken for speakers.
    """
    has_labels = split_by_speaker(turns) is not None
    if kind == NEXT or (has_labels and kind == NEW):
        roles = cycle(("user", "assistant"))
        return {"messages": [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]}
    if has_labels:
        *history, question, answer = turns
        return {"question": question, "answer": answer, "history": history}
    return {"conversation": turns}
