"""Replies and likelihood on DailyDialog (Li et al., 2017), beside published figures.

No data are fetched: the user has the corpus, whose licence is CC BY-NC-SA 4.0.
"""

import dataclasses
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.dailydialog_corpus import (
    KNOWN_WORDS,
    OFFICIAL,
    PARTS,
    PUBLISHED_SPLIT,
    TEST,
    TRAINING,
    UNKNOWN,
    VALIDATION,
    WHOLE,
    DailyDialog,
    read_dailydialog,
)
from benchmarks.dailydialog_figures import NOTE, NOTES, PUBLISHED, markdown, measure
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
from chatbot.config.stored import stored_settings, with_default_search
from chatbot.config.training import Settings
from chatbot.corpus.dataset import Corpus
from chatbot.corpus.reading.sources import find_sources
from chatbot.errors import UserError
from chatbot.flags import Flags, replace, setting

if TYPE_CHECKING:
    from chatbot.model.saved import Trained

TRAIN = Path(__file__).parents[1] / "train.py"
SEED = 7
OPENNMT = "OpenNMT-py, Transformer"
PEER_STEPS_BETWEEN = 500  # validations


@dataclasses.dataclass(frozen=True)
class DailyDialogBenchmark(Flags):
    """The flags of python -m benchmarks dailydialog."""

    folder: str = setting(
        ..., "folder of DailyDialog: train.zip, validation.zip, test.zip or their text", group="data", metavar="FOLDER"
    )
    split: str = setting(
        OFFICIAL,
        "dialogues and words: official, lower-cased; or as of dialog-eval's figures, 80, 10 and 10 of each hundred "
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
    flags = CommandLine(DailyDialogBenchmark, "benchmarks dailydialog", about, positional="folder").parse(own)
    corpus = read_dailydialog(Path(flags.folder), flags.split)
    with tempfile.TemporaryDirectory() as folder:
        files = corpus.write(Path(folder))
        is_trained = _is_trained(flags, files[TRAINING].name, training_flags)
        peer = opennmt_replies(flags, corpus, Path(folder)) if flags.opennmt else None
        if not is_trained:
            _train(flags.attempt, files, training_flags)
        results = _measure(flags, corpus, files, peer)
    print("\nAll {pairs:,} test pairs:\n".format(**results["all"]["people"]))
    print(*markdown({**PUBLISHED[flags.split], **results["all"]}), sep="\n")
    print("\nThe {pairs:,} of them that do not stand word for word in train:\n".format(**results["unseen"]["people"]))
    print(*markdown(results["unseen"]), "", NOTES[flags.split], NOTE, sep="\n")
    for system, nats in results["validation_nats_per_word"].items():
        print(f"Validation, {system}: {nats:.3f} nats per word.")
    published = PUBLISHED[flags.split]
    print_json({**dataclasses.asdict(flags), "flags": training_flags, "published": published, **results})
    return 0


def _is_trained(flags: DailyDialogBenchmark, training_file: str, training_flags: Sequence[str]) -> bool:
    """Whether the attempt is there. Raises UserError for one of another split, or with flags for a new one."""
    directory = attempt_directory(flags.attempt)
    if not (directory / CONFIG).exists():
        return False
    if training_flags:
        raise UserError(
            f"--attempt {flags.attempt}: is there, so it is only measured; leave out what follows --, or rename it"
        )
    if [Path(file).name for file in stored_settings(directory / CONFIG).corpus.data] != [training_file]:
        raise UserError(f"--attempt {flags.attempt}: was not trained with --split {flags.split}; give another name")
    return True


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


def opennmt_replies(flags: DailyDialogBenchmark, corpus: DailyDialog, folder: Path) -> PeerReplies:
    """Train OpenNMT-py's Transformer with the sizes of the preset on pairs of words, and reply by its beam search.

    Pairs of more than --max-length words are left out of training, as in this project.
    """
    values = values_of_preset(preset_for(len(corpus.pairs(TRAINING))), TRANSFORMER)
    settings, most = replace(Settings(), architecture=TRANSFORMER, **values), Settings().model.max_length
    for part in PARTS:
        pairs = [(question.split(), answer.split()) for question, answer in corpus.model_pairs(part)]
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
    return PeerReplies(replies, best.nats / words_and_ends(corpus.pairs(VALIDATION)))


def _measure(
    flags: DailyDialogBenchmark, corpus: DailyDialog, files: Mapping[str, Path], peer: PeerReplies | None
) -> dict[str, Any]:
    """Return the measures of each row, for all pairs of the test part and for those that are not in train."""
    from chatbot.evaluation.evaluate import reply
    from chatbot.evaluation.likelihood import Scorer
    from chatbot.evaluation.measures import samples_of
    from chatbot.inference.responder import TensorFlowModel, replier_of
    from chatbot.model.saved import load_trained

    directory = trained_directory(flags.attempt)
    trained = load_trained(directory)
    training, validation, pairs = (corpus.pairs(part) for part in PARTS)
    validation_corpus, test_corpus = (_corpus_of(trained, files[part], corpus.pairs(part)) for part in PARTS[1:])
    measured = random.Random(SEED).sample(range(len(pairs)), min(flags.pairs or len(pairs), len(pairs)))
    samples, pairs = samples_of(test_corpus), [pairs[i] for i in measured]
    (shard,) = (shard.select(measured) for shard in test_corpus.shards)

    searches = {"as in the chat": with_default_search(DecodingSettings(), directory)}
    for size in flags.beam_size:
        searches[f"generated, --beam-size {size}"] = DecodingSettings(beam_size=size, retrieve=NONE)
    score, model, replies = Scorer(trained.model), TensorFlowModel(trained.model), dict[str, Sequence[str]]()
    for name, search in searches.items():
        log(f"Replying: {name}")
        replies[name] = reply(replier_of(trained, search, model), [samples[i] for i in measured])
    nats_of_validation = {"this project": score(validation_corpus.shards).nats / words_and_ends(validation)}
    if peer is not None:
        replies[OPENNMT] = [peer.replies[i] for i in measured]
        nats_of_validation[OPENNMT] = peer.nats_per_word
    replies["random replies of train"] = random.Random(SEED).choices([answer for _, answer in training], k=len(pairs))
    replies["people"] = [answer for _, answer in pairs]

    seen = {*training}
    subsets = {"all": range(len(pairs)), "unseen": [i for i, pair in enumerate(pairs) if pair not in seen]}
    results = dict[str, Any]()
    for subset, rows in subsets.items():
        chosen = [pairs[i] for i in rows]
        results[subset] = {name: measure(chosen, [of_row[i] for i in rows], corpus) for name, of_row in replies.items()}
        nats = score([shard.select(np.array(rows, np.int64))]).nats
        for name in searches:
            results[subset][name]["nats_per_word"] = nats / words_and_ends(chosen) if chosen else None
    return {**results, "validation_nats_per_word": nats_of_validation, "step": trained.step}


def _corpus_of(trained: "Trained", file: Path, pairs: Sequence[tuple[str, str]]) -> Corpus:
    """Return the encoded pairs of a file. Raises UserError if the attempt's cleaning leaves some of them out."""
    from chatbot.evaluation.sources import held_out_corpus

    reading = EvaluationSettings(data=(str(file),), format="eou", cache=str(file.parent / "cache"))
    corpus = held_out_corpus(trained, find_sources([str(file)]), reading)
    if (number := sum(map(len, corpus.shards))) != len(pairs):
        raise UserError(
            f"--attempt {trained.settings.run.attempt}: its cleaning leaves {number:,} of {len(pairs):,} pairs of "
            f"{file.name}; train another one with --clean none"
        )
    return corpus


def words_and_ends(pairs: Sequence[tuple[str, str]]) -> int:
    """Return the number of words of the answers, each with an end symbol."""
    return sum(len(answer.split()) + 1 for _, answer in pairs)
