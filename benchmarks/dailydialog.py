"""Replies and likelihood on DailyDialog (Li et al., 2017), beside published figures (Csáky et al., 2019).

No data are fetched: the user has the corpus, whose licence is CC BY-NC-SA 4.0.
"""

import dataclasses
import itertools
import math
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.environments import environment, environments_flag
from benchmarks.peers.systems import OpenNMT
from benchmarks.report import log, print_json
from benchmarks.tokenised import TokenisedPairs
from chatbot.command_line import CommandLine
from chatbot.config.attempts import CONFIG, attempt_directory, trained_directory
from chatbot.config.corpus import NONE
from chatbot.config.decoding import DecodingSettings
from chatbot.config.evaluation import EvaluationSettings
from chatbot.config.model import TRANSFORMER
from chatbot.config.run import preset_for, values_of_preset
from chatbot.config.stored import with_default_search
from chatbot.config.training import Settings
from chatbot.corpus.dataset import Corpus
from chatbot.corpus.reading.open.sources import find_sources
from chatbot.errors import UserError
from chatbot.evaluation.measures import distinct, ranked_first
from chatbot.flags import Flags, replace, setting

Words = list[str]
Dialogue = list[Words]
Parts = dict[str, list[Dialogue]]

TRAIN = Path(__file__).parents[1] / "train.py"
END = "__eou__"
PARTS = TRAINING, VALIDATION, TEST = "train", "validation", "test"
OFFICIAL, PUBLISHED_SPLIT = "official", "published"
WHOLE = "dialogues_text.txt"  # all dialogues, which the published figures are of
SEED = 7
OPENNMT = "OpenNMT-py, Transformer"
PEER_STEPS_BETWEEN = 500  # validations
# The published figures count every word beyond the most common ones of training as the same word, here one that no
# cleaned text has.
KNOWN_WORDS = 16_384
UNKNOWN = "UNK"
# Weights of the precisions of n-grams in BLEU-1 to BLEU-4. dialog-eval has .33, not 1/3.
WEIGHTS = ((1.0,), (0.5,) * 2, (0.33,) * 3, (0.25,) * 4)

COLUMNS = (  # measure, heading, decimal places
    ("mean_words", "words", 1),
    ("distinct_1", "distinct-1", 4),
    ("distinct_2", "distinct-2", 3),
    *((f"bleu_{n}", f"BLEU-{n}", 3) for n in range(1, 5)),
    ("relevance_at_1", "relevance", 3),
    ("nats_per_word", "nats per word", 2),
)
# Csáky et al., Improving Neural Conversational Models with Entropy-Based Data Filtering, ACL 2019: their table of
# unfiltered DailyDialog, and the least validation loss of their figure 5.
_MEASURES = ("mean_words", "distinct_1", "distinct_2", "bleu_1", "bleu_2", "bleu_3", "bleu_4", "nats_per_word")
_VALUES = {
    "Transformer, least validation loss": (8.6, 0.0290, 0.149, 0.142, 0.135, 0.130, 0.119, 3.08),
    "Transformer, 150 epochs": (11.5, 0.0465, 0.297, 0.333, 0.333, 0.328, 0.315),
    "random replies of train": (13.5, 0.0577, 0.379, 0.090, 0.121, 0.130, 0.125),
    "people": (14.1, 0.0488, 0.362, 1.0, 1.0, 1.0, 1.0),
}
PUBLISHED = {f"published: {row}": dict(zip(_MEASURES, of_row, strict=False)) for row, of_row in _VALUES.items()}
NOTES = f"""\
One turn is the question, the next one the reply. Published rows: their own split of the same dialogues (80, 10 and 10
of each hundred), cleaned words, BLEU and distinct as dialog-eval computes them. distinct takes the words outside the
{KNOWN_WORDS:,} most common ones of training as one word; it falls with the number of pairs. BLEU is the mean of the
replies' own, by NLTK 3.4.5 with smoothing 4. Nats per word are of the true replies and their end symbols: the summed
nats over words and ends. The published ones are of validation. With --split {PUBLISHED_SPLIT}, the model reads and
writes each word outside the {KNOWN_WORDS:,} as {UNKNOWN}, as the published ones do; with --split {OFFICIAL}, every word
is spelled out."""


@dataclasses.dataclass(frozen=True)
class DailyDialogBenchmark(Flags):
    """The flags of python -m benchmarks dailydialog."""

    folder: str = setting(
        ..., "folder of DailyDialog: train.zip, validation.zip, test.zip or their text", group="data", metavar="FOLDER"
    )
    split: str = setting(
        OFFICIAL,
        "dialogues and words: official, lower-cased; or as of the published figures, 80, 10 and 10 of each hundred "
        f"in {WHOLE} (without it, of the three parts in turn), cleaned, with {KNOWN_WORDS:,} words and {UNKNOWN}",
        choices=(OFFICIAL, PUBLISHED_SPLIT),
    )
    pairs: int | None = setting(None, "measure this many test pairs, drawn by a seed; default: all", least=10)
    attempt: str = setting("dailydialog", "name of the run; an existing one is only measured", group="training")
    beam_size: tuple[int, ...] = setting(
        (1, 5), "beam search without looked-up replies, beside the default search; one row for each", least=1
    )
    opennmt: int = setting(
        0,
        f"with --split {PUBLISHED_SPLIT}: minutes of training of a Transformer by OpenNMT-py, for a row of its own",
        group="peers",
        least=0,
    )
    environments: str | None = environments_flag()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.opennmt and self.split != PUBLISHED_SPLIT:
            raise UserError(f"--opennmt: its words are those of --split {PUBLISHED_SPLIT}; add this, or leave it out")


def dailydialog_benchmark(arguments: Sequence[str]) -> int:
    """Train and measure, print Markdown tables, and as the last line one JSON object."""
    about = (
        "Train on DailyDialog and measure the replies to its test part, beside published figures. What follows -- are "
        "flags of train.py: dailydialog FOLDER -- --time-limit 0:30"
    )
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, training_flags = arguments[:end], [*arguments[end + 1 :]]
    flags = CommandLine(DailyDialogBenchmark, "-m benchmarks dailydialog", about, positional="folder").parse(own)
    is_trained = (attempt_directory(flags.attempt) / CONFIG).exists()
    if is_trained and training_flags:
        raise UserError(
            f"--attempt {flags.attempt}: is there, so it is only measured; leave out what follows --, or rename it"
        )
    parts = read_parts(Path(flags.folder), flags.split)
    counts = Counter(word for dialogue in parts[TRAINING] for words in dialogue for word in words)
    known = {word for word, _ in counts.most_common(KNOWN_WORDS)}
    written = with_unknown_words(parts, known) if flags.split == PUBLISHED_SPLIT else parts
    with tempfile.TemporaryDirectory() as folder:
        peer = opennmt_replies(flags, written, Path(folder)) if flags.opennmt else None
        files = write_parts(written, Path(folder), flags.split)
        if not is_trained:
            _train(flags.attempt, files, training_flags)
        results = _measure(flags, parts, files, known, peer)
    print("\nAll {pairs:,} test pairs:\n".format(**results["all"]["people"]))
    print(*markdown({**PUBLISHED, **results["all"]}), sep="\n")
    print("\nThe {pairs:,} of them that do not stand word for word in train:\n".format(**results["unseen"]["people"]))
    print(*markdown(results["unseen"]), "", NOTES, sep="\n")
    for system, nats in results["validation_nats_per_word"].items():
        print(f"Validation, {system}: {nats:.3f} nats per word.")
    print_json({**dataclasses.asdict(flags), "flags": training_flags, "published": PUBLISHED, **results})
    return 0


def read_parts(folder: Path, split: str) -> Parts:
    """Return the dialogues of each part, as words of turns; turns without words are left out.

    Raises UserError for a missing or unusable file.
    """
    if split == OFFICIAL:
        return {part: [_words(line, str.lower) for line in _lines(folder, part)] for part in PARTS}
    whole = folder / WHOLE
    lines = _read(whole) if whole.exists() else [line for part in PARTS for line in _lines(folder, part)]
    parts: Parts = {part: [] for part in PARTS}
    for number, line in enumerate(lines):
        parts[PARTS[max(0, number % 100 // 10 - 7)]].append(_words(line, cleaned))
    return parts


def _lines(folder: Path, part: str) -> list[str]:
    """Return the lines of a part: of a text file in the folder or in a folder of its name, or in an archive."""
    name = f"dialogues_{part}.txt"
    archive = folder / f"{part}.zip"
    path = next((path for path in (folder / name, folder / part / name, archive) if path.exists()), None)
    if path is None:
        raise UserError(f"{folder}: has neither {name} nor {archive.name}; give the folder of DailyDialog")
    return _read(path, f"{part}/{name}")


def _read(path: Path, member: str = "") -> list[str]:
    """Return the lines of a text file, or of this member of an archive."""
    try:
        text = (zipfile.Path(path, member) if path.suffix == ".zip" else path).read_text(encoding="utf-8")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        raise UserError(f"{path}: cannot be read; give the folder of DailyDialog as it was downloaded") from None
    if END not in text:
        raise UserError(f"{path}: no turn in it ends in {END}; give the folder of DailyDialog as it was downloaded")
    return text.rstrip("\n").split("\n")


def _words(line: str, normalise: Callable[[str], str]) -> Dialogue:
    return [words for turn in line.split(END)[:-1] if (words := normalise(turn).split())]


def cleaned(turn: str) -> str:
    """Return a turn in the words of the published figures.

    Only lower-case letters, digits, spaces, apostrophes and . ? ! are kept. The marks are words; n't and what follows
    another apostrophe begin a word; an apostrophe in front of a word is left out.
    """
    text = re.sub(r"[^a-z0-9 .?!']", "", turn.lower())
    text = re.sub(r"([.?!])", r" \1 ", text).replace(" ' ", " ")
    text = re.sub(r" '(?=[a-z])", " ", text).replace("n't", " n't")
    return re.sub(r"([^ n])'(?=[^ t])", r"\1 '", text)


def pairs_of(dialogues: Sequence[Dialogue]) -> list[tuple[str, str]]:
    """Return each turn with the next one, in the order in which training reads them."""
    texts = [[" ".join(words) for words in dialogue] for dialogue in dialogues]
    return [pair for turns in texts for pair in itertools.pairwise(turns)]


def with_unknown_words(parts: Parts, known: Container[str]) -> Parts:
    """Return the dialogues with `UNKNOWN` for all other words."""
    return {
        part: [[[word if word in known else UNKNOWN for word in words] for words in turns] for turns in dialogues]
        for part, dialogues in parts.items()
    }


def write_parts(parts: Parts, folder: Path, split: str) -> dict[str, Path]:
    """Write each part as a file in the format of the corpus. Raises UserError for a part without pairs."""
    files = {part: folder / f"{split}-{part}.txt" for part in PARTS}
    for part, file in files.items():
        if not pairs_of(parts[part]):
            raise UserError(f"the {part} part of DailyDialog has no two turns in a row; give its own folder")
        lines = ["".join(f"{' '.join(words)} {END} " for words in dialogue).rstrip() for dialogue in parts[part]]
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return files


def _train(attempt: str, files: Mapping[str, Path], flags: list[str]) -> None:
    """Train on every pair, its words unchanged, unless the flags say otherwise."""
    command = [sys.executable, str(TRAIN), "--data", str(files[TRAINING]), "--validation", str(files[VALIDATION])]
    command += ["--format", "eou", "--clean", NONE, "--cache", str(files[TRAINING].parent / "cache")]
    completed = subprocess.run([*command, "--attempt", attempt, *flags], stdout=sys.stderr, check=False)
    if completed.returncode:
        raise UserError(f"train.py {shlex.join(flags)}: failed; the lines above say why")


@dataclasses.dataclass(frozen=True)
class PeerReplies:
    """The replies of another system to all test pairs, and its nats per word of the validation part."""

    replies: list[str]
    nats_per_word: float


def opennmt_replies(flags: DailyDialogBenchmark, parts: Parts, folder: Path) -> PeerReplies:
    """Train OpenNMT-py's Transformer with the sizes of the preset on pairs of words, and reply by its beam search.

    Pairs of more than --max-length words are left out of training, as in this project.
    """
    values = values_of_preset(preset_for(len(pairs_of(parts[TRAINING]))), TRANSFORMER)
    settings, most = replace(Settings(), architecture=TRANSFORMER, **values), Settings().model.max_length
    for part in PARTS:
        pairs = [(question.split(), answer.split()) for question, answer in pairs_of(parts[part])]
        if part == TRAINING:
            pairs = [pair for pair in pairs if max(map(len, pair)) <= most]
        counts = Counter(word for pair in pairs for side in pair for word in side)
        TokenisedPairs(pairs, [word for word, _ in counts.most_common()]).write(folder, part)
    peer = OpenNMT(environment("opennmt", flags.environments), folder, len(os.sched_getaffinity(0)))
    log(f"OpenNMT-py: trains for {flags.opennmt} minutes")
    best = peer.best(settings, TRAINING, VALIDATION, 60 * flags.opennmt, PEER_STEPS_BETWEEN, saves=True)
    log(f"OpenNMT-py: replies with the model of step {best.step:,}")
    peer.translate(best.step, TEST, beam_size=5, batch_size=64, max_length=most)
    replies = (folder / "replies").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return PeerReplies(replies, best.nats / words_and_ends(pairs_of(parts[VALIDATION])))


def _measure(
    flags: DailyDialogBenchmark,
    parts: Parts,
    files: Mapping[str, Path],
    known: set[str],
    peer: PeerReplies | None,
) -> dict[str, Any]:
    """Return the measures of each row, for all pairs of the test part and for those that are not in train.

    known: the words that distinct tells apart. Raises UserError for an attempt that was trained on other parts.
    """
    from chatbot.evaluation.evaluate import reply
    from chatbot.evaluation.likelihood import Scorer
    from chatbot.evaluation.measures import samples_of
    from chatbot.evaluation.sources import held_out_corpus
    from chatbot.inference.responder import TensorFlowModel, replier_of
    from chatbot.model.saved import load_trained

    directory = trained_directory(flags.attempt)
    trained = load_trained(directory)
    if [Path(file).name for file in trained.settings.corpus.data] != [files[TRAINING].name]:
        raise UserError(f"--attempt {flags.attempt}: was not trained with --split {flags.split}; give another name")
    training, validation, pairs = (pairs_of(parts[part]) for part in PARTS)
    corpora = dict[str, Corpus]()
    for part, of_part in (VALIDATION, validation), (TEST, pairs):
        file = str(files[part])
        reading = EvaluationSettings(data=(file,), format="eou", cache=str(files[part].parent / "cache"))
        corpora[part] = held_out_corpus(trained, find_sources([file]), reading)
        if (number := sum(map(len, corpora[part].shards))) != len(of_part):
            raise UserError(
                f"--attempt {flags.attempt}: its cleaning leaves {number:,} of {len(of_part):,} {part} pairs; train "
                "another one with --clean none"
            )
    (shard,), samples = corpora[TEST].shards, samples_of(corpora[TEST])
    measured = random.Random(SEED).sample(range(len(pairs)), min(flags.pairs or len(pairs), len(pairs)))
    shard, samples, pairs = shard.select(measured), [samples[i] for i in measured], [pairs[i] for i in measured]
    searches = {"as in the chat": with_default_search(DecodingSettings(), directory)}
    for size in flags.beam_size:
        searches[f"generated, --beam-size {size}"] = DecodingSettings(beam_size=size, retrieve=NONE)
    score, model, replies = Scorer(trained.model), TensorFlowModel(trained.model), dict[str, list[str]]()
    for name, search in searches.items():
        log(f"Replying: {name}")
        replies[name] = reply(replier_of(trained, search, model), samples)
    drawn = random.Random(SEED).choices([answer for _, answer in training], k=len(pairs))
    others = {"random replies of train": drawn, "people": [answer for _, answer in pairs]}
    nats_of_validation = {"this project": score(corpora[VALIDATION].shards).nats / words_and_ends(validation)}
    if peer is not None:
        others = {OPENNMT: [peer.replies[i] for i in measured], **others}
        nats_of_validation[OPENNMT] = peer.nats_per_word

    seen = {*training}
    subsets = {"all": range(len(pairs)), "unseen": [i for i, pair in enumerate(pairs) if pair not in seen]}
    results = dict[str, Any]()
    for subset, rows in subsets.items():
        chosen = [pairs[i] for i in rows]
        results[subset] = {
            name: measure(chosen, [of_row[i] for i in rows], known) for name, of_row in {**replies, **others}.items()
        }
        nats = score([shard.select(np.array(rows, np.int64))]).nats
        for name in searches:
            results[subset][name]["nats_per_word"] = nats / words_and_ends(chosen) if chosen else None
    return {**results, "validation_nats_per_word": nats_of_validation, "step": trained.step}


def words_and_ends(pairs: Sequence[tuple[str, str]]) -> int:
    """Return the number of words of the answers, each with an end symbol."""
    return sum(len(answer.split()) + 1 for _, answer in pairs)


def measure(pairs: Sequence[tuple[str, str]], replies: Sequence[str], known: set[str]) -> dict[str, float | None]:
    """Return the measures of a reply to each question. known: the words that distinct tells apart."""
    words, number = [reply.split() for reply in replies], max(1, len(pairs))
    shown = [[word if word in known else UNKNOWN for word in of_reply] for of_reply in words]
    shares = ranked_first([question for question, _ in pairs], replies)
    scores = [bleu(of_reply, answer.split()) for of_reply, (_, answer) in zip(words, pairs, strict=True)]
    return {
        "pairs": len(pairs),
        "mean_words": sum(map(len, words)) / number,
        "distinct_1": distinct(shown, 1),
        "distinct_2": distinct(shown, 2),
        **{f"bleu_{n}": sum(score[n - 1] for score in scores) / number for n in range(1, 5)},
        "relevance_at_1": None if shares is None else float(shares.mean()),
    }


def bleu(reply: Sequence[str], reference: Sequence[str]) -> list[float]:
    """Return BLEU-1 to BLEU-4 of a reply, smoothed by method 4 of Chen and Cherry (2014) as NLTK 3.4.5 has it.

    A precision of 0 becomes 1 / (n - 1 + 5 / ln(length)). All are 0 for less than two words, whose logarithm is 0, and
    for no common word.
    """
    precisions = list[float]()
    for n in range(1, 5):
        ours, theirs = (Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (reply, reference))
        common = (ours & theirs).total()
        if len(reply) < 2 or (n == 1 and not common):
            return [0.0] * 4
        precisions.append(common / ours.total() if common else 1 / (n - 1 + 5 / math.log(len(reply))))
    brevity = min(1.0, math.exp(1 - len(reference) / len(reply)))
    logarithms = [[w * math.log(p) for w, p in zip(weights, precisions, strict=False)] for weights in WEIGHTS]
    return [brevity * math.exp(sum(of_order)) for of_order in logarithms]


def markdown(rows: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Return the lines of a Markdown table of the measures of each row."""
    lines = ["| | " + " | ".join(heading for _, heading, _ in COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for name, row in rows.items():
        cells = [(row.get(measure), digits) for measure, _, digits in COLUMNS]
        lines.append(f"| {name} | " + " | ".join("" if x is None else f"{x:.{d}f}" for x, d in cells) + " |")
    return lines
