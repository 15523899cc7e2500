"""Loads and checks the training and validation pairs of a run, before any device is used."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.attempts.files import CONFIG, VOCABULARY
from chatbot.attempts.opening import (
    check_data,
    check_settings,
    has_checkpoint,
    init_from_directory,
)
from chatbot.attempts.settings import stored_settings
from chatbot.config.attempts import RATINGS
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.learning import QUESTION_NATS
from chatbot.config.run import PRESET_MAX_PAIRS
from chatbot.config.training import Settings
from chatbot.corpus.dataset import Corpus, describe_report, training_set, validation_set
from chatbot.corpus.files import SPACES, excluded_test_parts, validation_files, without_word_spaces
from chatbot.corpus.history import count_with_history
from chatbot.corpus.reading.report import Report
from chatbot.corpus.shards import Shards, frequent_questions
from chatbot.corpus.tokenizer import print_unused_words, tokens_of
from chatbot.corpus.vocabulary import BYTES, SPECIALS, Vocabulary, load_vocabulary, source_of
from chatbot.display import pluralize, visible
from chatbot.errors import UserError
from chatbot.evaluation.measures import Sample, sample_of
from chatbot.flags import flatten, replace
from chatbot.training.preset import choose_batch, choose_preset

SAMPLES = 3
# The number of validation questions to which replies are generated and evaluated.
MEASURED = 200
FILES_SHOWN = 5
# With fewer validation pairs, differences between checkpoints are mostly noise, so no best checkpoint is selected.
MIN_DECISIVE_PAIRS = 50
# With --both-directions auto, the model also learns to predict questions from answers if there are fewer pairs than
# this. Larger corpora have not been tested.
MAX_PAIRS_BOTH_DIRECTIONS = PRESET_MAX_PAIRS["medium"]
# The maximum number of questions from --probe, and the maximum number of characters per question.
MAX_PROBE_QUESTIONS = 20
MAX_PROBE_CHARACTERS = 2000


@dataclasses.dataclass(frozen=True)
class Data:
    """The encoded pairs of a run, and their vocabulary."""

    vocabulary: Vocabulary
    training: Shards
    validation: Corpus | None
    chosen: dict[str, Any]  # settings that were chosen automatically, by name
    description: dict[str, Any]  # the content of data.json, a file that describes the pairs of an attempt
    samples: list[Sample]  # a few validation pairs, or training pairs if there is no validation
    measured: list[Sample]  # validation pairs for which replies are generated and evaluated
    probe: list[Sample]  # the questions of --probe, without answers

    @property
    def questions(self) -> list[Sample]:
        """The questions to which the model replies at each validation: those of `samples` and `probe`."""
        return [*self.samples, *self.probe]

    @property
    def validation_decides(self) -> bool:
        """Whether validation selects the best checkpoint and can end the run early."""
        return _is_decisive(self.validation)

    @property
    def both_directions(self) -> bool:
        """Whether each pair is also learned in reverse, from answer to question."""
        return bool(self.description["both_directions"])


def prepare(settings: Settings, probe: Sequence[str] = (), gpus: int = 0) -> Data:
    """Read and encode the pairs, and print a summary. A resumed attempt must use the same pairs as before.

    No files are written except the cache of encoded pairs.

    Args:
        settings: The settings of the run.
        probe: The questions of --probe.
        gpus: The number of GPUs on all machines.

    Raises:
        UserError: If the pairs cannot be used, or differ from the pairs the attempt was started with.
    """
    if settings.run.embeddings not in (AUTO, NONE):
        from chatbot.retrieval.embeddings import open_embeddings

        open_embeddings(settings.run.embeddings)
    resumed = has_checkpoint(settings)
    chosen = _stored_choices(settings) if resumed else _new_choices(settings)
    settings = replace(settings, **chosen)
    if resumed:
        check_settings(settings)
    corpus, validation = _read(settings, resumed)
    shards = corpus.shards
    vocabulary = corpus.vocabulary
    pairs = corpus.shards.lengths.pairs
    if validation:
        _print_validation(settings, validation)
    _print_training(settings, corpus, _is_decisive(validation))
    if not resumed:
        chosen |= choose_preset(settings, pairs, validation is not None)
        settings = replace(settings, **chosen)
    # The reverse direction is not learned without validation, because the model then only memorises the pairs.
    is_small = _is_decisive(validation) and pairs < MAX_PAIRS_BOTH_DIRECTIONS and settings.model.form is None
    both = settings.learning.both_directions == "on" or (settings.learning.both_directions == AUTO and is_small)
    description = {
        "pairs": pairs,
        "fingerprint": corpus.fingerprint,
        "vocabulary": vocabulary.fingerprint(),
        "both_directions": both,
        "questions": frequent_questions(shards, vocabulary),
        # Data files that contain no usable pairs.
        "without_pairs": [r.file for r in corpus.reports if not r.pairs and r.file in settings.corpus.data],
    }
    if resumed:
        both = description["both_directions"] = check_data(settings, description)
    else:
        chosen |= choose_batch(settings, pairs * (2 if both else 1), gpus)
    if settings.learning.best_by == QUESTION_NATS and not both:
        raise UserError(
            f"--best-by {QUESTION_NATS}: only one direction is learned; add --both-directions on to a new attempt"
        )
    if both:
        print("Each pair is learned in both directions (--both-directions).")
    sampled = validation.shards if validation else shards
    return Data(
        vocabulary=vocabulary,
        training=dataclasses.replace(shards, both_directions=both),
        validation=validation,
        chosen=chosen,
        description=description,
        samples=[sample_of(*pair, vocabulary) for pair in sampled.spread(SAMPLES)],
        measured=[sample_of(*pair, vocabulary) for pair in validation.shards.spread(MEASURED)] if validation else [],
        probe=probe_samples(probe, settings, vocabulary),
    )


def _stored_choices(settings: Settings) -> dict[str, Any]:
    """Return the settings that a resumed attempt takes from its stored settings, by name."""
    stored = stored_settings(settings.run.directory / CONFIG)
    values = flatten(stored)
    chosen = {name: values[name] for name in settings.run.not_given}
    if settings.run.preset == AUTO:
        chosen["preset"] = stored.run.preset
    if SPACES in stored.corpus.clean and not {SPACES, NONE} & {*settings.corpus.clean}:
        # The cleaning step was added automatically when the attempt was started.
        chosen["clean"] = (*settings.corpus.clean, SPACES)
    if settings.encoding.validation == AUTO:
        chosen["validation"] = stored.encoding.validation
    return chosen


def _new_choices(settings: Settings) -> dict[str, Any]:
    """Check the input files of a new attempt, and return automatically chosen settings, by name."""
    _check_ratings(settings.corpus.data)
    if settings.run.init_from is not None:
        from chatbot.pretrained.folder import pretrained_model

        if pretrained_model(settings.run.init_from) is None:
            init_from_directory(settings)  # Reports a missing attempt before the pairs are read.
    corpus = without_word_spaces(settings.corpus)
    print_unused_words(corpus)
    if settings.model.word_vectors is not None:
        from chatbot.pretrained.word_vectors import check_readable

        check_readable(Path(settings.model.word_vectors))
    return {"clean": corpus.clean}


def _check_ratings(data: Sequence[str]) -> None:
    """Raise UserError if --data contains the file in which chat stores new ratings."""
    ratings = RATINGS.resolve()
    for name in data if RATINGS.exists() else ():
        if Path(name).resolve() in (ratings, *ratings.parents):
            raise UserError(
                f"--data {name}: {RATINGS} changes with each rating, so training could not be resumed; use a copy of it"
            )


def _read(settings: Settings, resumed: bool) -> tuple[Corpus, Corpus | None]:
    """Read the training and the validation pairs. Raises UserError if all pairs are longer than --max-length."""
    max_length = settings.model.max_length
    pretrained = None if settings.model.form is None else _pretrained_vocabulary(settings, resumed)
    corpus = training_set(settings.corpus, settings.encoding, pretrained, max_length)
    vocabulary = corpus.vocabulary
    if resumed:
        vocabulary = load_vocabulary(settings.run.directory / VOCABULARY)
    elif settings.run.init_from is not None and pretrained is None:
        vocabulary = extend_vocabulary(init_from_directory(settings), vocabulary)
    if vocabulary.fingerprint() != corpus.vocabulary.fingerprint():
        corpus = training_set(settings.corpus, settings.encoding, vocabulary, max_length)
    validation = validation_set(settings.corpus, settings.encoding, vocabulary, max_length)
    shards = dataclasses.replace(corpus.shards, max_length=max_length)
    if not shards.lengths.pairs:
        shortest = corpus.shards.lengths.sides.max(axis=0).min()
        raise UserError(
            f"--max-length {max_length}: all pairs are longer; the shortest has {pluralize(shortest, 'token')}; set "
            "--max-length to at least this number"
        )
    return dataclasses.replace(corpus, shards=shards), validation


def _pretrained_vocabulary(settings: Settings, resumed: bool) -> Vocabulary:
    """Return the vocabulary of the pretrained model on which the attempt is based."""
    from chatbot.pretrained.folder import pretrained_model
    from chatbot.pretrained.tokens import piece_vocabulary

    if resumed or (model := pretrained_model(settings.run.init_from)) is None:
        return load_vocabulary((settings.run.directory if resumed else init_from_directory(settings)) / VOCABULARY)
    vocabulary, _ = piece_vocabulary(model.tokenizer(), model.config)
    first_tokens = " ".join(vocabulary.description["beginning"]) or "no special token"
    facts = f"{len(vocabulary):,} tokens; texts begin with {first_tokens}"
    print(f"Starting from the pretrained model in {model.folder}: {facts}.")
    return vocabulary


def _is_decisive(validation: Corpus | None) -> bool:
    return validation is not None and validation.pairs >= MIN_DECISIVE_PAIRS


def _print_validation(settings: Settings, validation: Corpus) -> None:
    """Print a summary of the validation pairs, and a note if there are too few to select a checkpoint."""
    pairs = pluralize(validation.pairs, "pair")
    if settings.encoding.validation == AUTO and validation_files(settings.corpus) is None:
        key = "conversation" if settings.encoding.history else "question"
        print(
            f"Validating on {pairs} held out from the training data, selected by {key} (--validation none trains on "
            "all pairs)."
        )
    else:
        print(f"Validating on {pairs} from {', '.join(report.file for report in validation.reports)}.")
        _print_reports(validation.reports)
    if not _is_decisive(validation):
        print(
            f"  {pairs} are too few to select a checkpoint (at least {MIN_DECISIVE_PAIRS}): the likelihood is "
            "reported, but does not end the run, and the last checkpoint is used."
        )


def _print_training(settings: Settings, corpus: Corpus, validated: bool) -> None:
    """Print a summary of the training pairs with skipped files, dropped pairs and a few samples."""
    if names := excluded_test_parts(settings.corpus):
        print(f"Not used for training: {', '.join(names)}.")
    files = [report.file for report in corpus.reports if report.pairs]
    first_files = ", ".join(files[:FILES_SHOWN])
    if len(files) > FILES_SHOWN:
        first_files += f" and {pluralize(len(files) - FILES_SHOWN, 'other file')}"
    pairs = corpus.shards.lengths.pairs
    tokens = pluralize(len(corpus.vocabulary), "token")
    print(f"Training on {pluralize(pairs, 'pair')} from {first_files}; {tokens} in the vocabulary.")
    _print_reports(corpus.reports)
    if pairs < corpus.pairs:
        max_length = settings.model.max_length
        use = "left out" if validated or not settings.run.retrieve_pairs else "not learned, but looked up"
        print(f"  {use}: pairs longer than --max-length {max_length} tokens: {corpus.pairs - pairs:,}")
    for pair in corpus.shards.spread(SAMPLES):
        question, reply = (" ".join(corpus.vocabulary.tokens_of(side)) for side in pair)
        print(visible(f"  {question} -> {reply}"))
    if turns := settings.encoding.history:
        with_turns = sum(count_with_history(part.sources, corpus.vocabulary.first_mark) for part in corpus.shards)
        print(f"--history {turns}: {with_turns:,} of these pairs have turns before the question.")


def _print_reports(reports: list[Report]) -> None:
    for report in reports:
        if not report.dropped and not report.unused and len(reports) > FILES_SHOWN:
            continue  # In long lists, only files with dropped pairs or unused data are shown.
        kinds = ", ".join([*report.formats, *report.charsets])
        print(f"  {report.file}: {kinds}, {pluralize(report.pairs, 'pair')}")
        for line in describe_report(report):
            print(f"  {line}")


def read_probe(file: str | None) -> list[str]:
    """Read the questions of --probe from a text file with one question per line.

    Args:
        file: The value of --probe: a path, or None or "none" for no questions.

    Returns:
        The first MAX_PROBE_QUESTIONS questions.

    Raises:
        UserError: If the file cannot be read, is not UTF-8, or contains no question.
    """
    if file is None or file == NONE:
        return []
    remedy = "use a text file with one question per line"
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"--probe {file}: cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"--probe {file}: not valid UTF-8; {remedy}, encoded in UTF-8") from None
    questions = [line.strip() for line in text.splitlines() if line.strip()][:MAX_PROBE_QUESTIONS]
    if not questions:
        raise UserError(f"--probe {file}: no question; {remedy}")
    return questions


def probe_samples(questions: Sequence[str], settings: Settings, vocabulary: Vocabulary) -> list[Sample]:
    """Encode the questions of --probe in the same way as questions in chat. Questions without tokens are dropped."""
    tokens = tokens_of(settings.corpus)
    encoded = ((question, vocabulary.ids(tokens(question[:MAX_PROBE_CHARACTERS]))) for question in questions)
    max_length = settings.model.max_length
    return [Sample(source_of([ids], vocabulary, max_length), question, "") for question, ids in encoded if ids]


def extend_vocabulary(directory: Path, new: Vocabulary) -> Vocabulary:
    """Merge the vocabulary of the training pairs with the vocabulary of an existing attempt.

    Args:
        directory: The directory of the existing attempt.
        new: The vocabulary of the training pairs.

    Returns:
        The tokens of the training pairs, followed by the tokens that occur only in the attempt.
    """
    old = load_vocabulary(directory / VOCABULARY)
    new_tokens = new.tokens[len(SPECIALS) : new.first_byte]
    known = set(new_tokens)
    old_tokens = [token for token in old.tokens[len(SPECIALS) : old.first_byte] if token not in known]
    added = pluralize(len(known - set(old.tokens)), "new token")
    print(f"Starting from the weights of {directory}: {added} in the pairs; {len(old_tokens):,} others are kept.")
    return Vocabulary([*new_tokens, *old_tokens, *BYTES])
