"""The training and validation pairs of a run, read and checked before any device is used."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatbot.attempts.files import CONFIG, VOCABULARY
from chatbot.attempts.opening import (
    check_data,
    check_settings,
    has_checkpoint,
    other_attempt,
)
from chatbot.attempts.settings import stored_settings
from chatbot.config.attempts import RATINGS
from chatbot.config.corpus import AUTO, NONE
from chatbot.config.learning import QUESTION_NATS
from chatbot.config.run import FEWER_PAIRS_THAN, preset_for, values_of_preset
from chatbot.config.training import Settings
from chatbot.corpus.dataset import Corpus, described, training_set, validation_set
from chatbot.corpus.files import SPACES, left_out, validation_files, without_word_spaces
from chatbot.corpus.history import with_history
from chatbot.corpus.reading.report import Report
from chatbot.corpus.shards import Shards, frequent_questions
from chatbot.corpus.tokenizer import print_unused_words, tokens_of
from chatbot.corpus.vocabulary import BYTES, SPECIALS, Vocabulary, load_vocabulary, source_of
from chatbot.display import counted, visible
from chatbot.errors import UserError
from chatbot.evaluation.measures import Sample, sample_of
from chatbot.flags import flags_for, flatten, replace

SAMPLES = 3
# Replies to this many validation questions are measured, in about a sixth of the time that scoring 2,000 pairs takes.
MEASURED = 200
FILES_SHOWN = 5
# With fewer validation pairs, the differences between two validations are mostly noise. A good --validation auto of the
# smallest corpus has about 100.
FEWEST_DECIDING = 50
# --both-directions auto: fewer pairs than this are learned in both, as those of presets small and medium; more were not
# tried.
MOST_PAIRS_BOTH_DIRECTIONS = FEWER_PAIRS_THAN["medium"]
# --probe: questions that are asked, and characters of each that the model is given, as in chat.
MOST_QUESTIONS = 20
MOST_CHARACTERS = 2000


@dataclasses.dataclass(frozen=True)
class Data:
    """Encoded pairs and their vocabulary."""

    vocabulary: Vocabulary
    training: Shards
    validation: Corpus | None
    chosen: dict[str, Any]  # settings by name that the attempt keeps: of --clean, --validation, --preset and by it
    description: dict[str, Any]  # the content of data.json
    samples: list[Sample]  # from the validation pairs if there are any, else from the training pairs
    measured: list[Sample]  # validation pairs whose replies are measured; none without validation
    probe: list[Sample]  # the questions of --probe, without answers

    @property
    def questions(self) -> list[Sample]:
        """The questions whose replies are shown at each validation: the samples, and those of --probe."""
        return [*self.samples, *self.probe]

    @property
    def validation_decides(self) -> bool:
        """Whether validation chooses the best checkpoint and ends the run."""
        return _decides(self.validation)

    @property
    def both_directions(self) -> bool:
        """Whether each pair is also learned from answer to question."""
        return bool(self.description["both_directions"])


def prepare(settings: Settings, probe: Sequence[str] = ()) -> Data:
    """Read and encode the pairs, print a summary, and check that they fit the attempt if it is resumed.

    probe: the questions of --probe. Writes only to the cache. Raises UserError if the data cannot be used, or differ
    from the data with which the attempt was started.
    """
    if settings.run.embeddings not in (None, NONE):
        from chatbot.retrieval.embeddings import open_embeddings

        open_embeddings(settings.run.embeddings)
    resumed = has_checkpoint(settings)
    chosen = _kept_choices(settings) if resumed else _first_choices(settings)
    settings = replace(settings, **chosen)
    if resumed:
        check_settings(settings)
    corpus, validation = _read(settings, resumed)
    shards = corpus.shards
    vocabulary = corpus.vocabulary
    pairs = corpus.shards.lengths.pairs
    if validation:
        _print_validation(settings, validation)
    _print_training(settings, corpus)
    if not resumed:
        chosen |= preset_values(settings, pairs, validation is not None)
        settings = replace(settings, **chosen)
    # Without validation the aim is to memorise the pairs; the reverse direction would slow this down.
    few = _decides(validation) and pairs < MOST_PAIRS_BOTH_DIRECTIONS and settings.model.form is None
    both = settings.learning.both_directions == "on" or (settings.learning.both_directions == AUTO and few)
    description = {
        "pairs": pairs,
        "fingerprint": corpus.fingerprint,
        "vocabulary": vocabulary.fingerprint(),
        "both_directions": both,
        "questions": frequent_questions(shards, vocabulary),
        # Such as one in which all replies are rated bad.
        "without_pairs": [r.file for r in corpus.reports if not r.pairs and r.file in settings.corpus.data],
    }
    if resumed:
        both = description["both_directions"] = check_data(settings, description)
    if settings.learning.best_by == QUESTION_NATS and not both:
        raise UserError(
            f"--best-by {QUESTION_NATS}: only one direction is learned; add --both-directions on to a new attempt"
        )
    if both:
        print("Each pair is learned in both directions (--both-directions).")
    shown = validation.shards if validation else shards
    return Data(
        vocabulary=vocabulary,
        training=dataclasses.replace(shards, both_directions=both),
        validation=validation,
        chosen=chosen,
        description=description,
        samples=[sample_of(*pair, vocabulary) for pair in shown.spread(SAMPLES)],
        measured=[sample_of(*pair, vocabulary) for pair in validation.shards.spread(MEASURED)] if validation else [],
        probe=probe_samples(probe, settings, vocabulary),
    )


def _kept_choices(settings: Settings) -> dict[str, Any]:
    """Return the settings that a resumed attempt keeps, by name."""
    began = stored_settings(settings.run.directory / CONFIG)
    values = flatten(began)
    kept = {name: values[name] for name in settings.run.not_given}
    if settings.run.preset == AUTO:
        kept["preset"] = began.run.preset
    if SPACES in began.corpus.clean and not {SPACES, NONE} & {*settings.corpus.clean}:  # as the corpus needed it then
        kept["clean"] = (*settings.corpus.clean, SPACES)
    if settings.encoding.validation == AUTO:
        kept["validation"] = began.encoding.validation
    return kept


def _first_choices(settings: Settings) -> dict[str, Any]:
    """Return the settings that the files of a new attempt need, by name. Raises UserError for unusable files."""
    _check_ratings(settings.corpus.data)
    if settings.run.init_from is not None:
        from chatbot.pretrained.folder import pretrained_model

        if pretrained_model(settings.run.init_from) is None:
            other_attempt(settings)  # checked before pairs are read
    corpus = without_word_spaces(settings.corpus)
    print_unused_words(corpus)
    if settings.model.word_vectors is not None:
        from chatbot.pretrained.word_vectors import check_readable

        check_readable(Path(settings.model.word_vectors))
    return {"clean": corpus.clean}


def _check_ratings(data: Sequence[str]) -> None:
    """Raise UserError if the pairs are those of the file of ratings, which changes with each rating."""
    ratings = RATINGS.resolve()
    for name in data if RATINGS.exists() else ():
        if Path(name).resolve() in (ratings, *ratings.parents):
            raise UserError(
                f"--data {name}: {RATINGS} changes with each rating, and training could not resume; copy it, "
                "and give the copy"
            )


def _read(settings: Settings, resumed: bool) -> tuple[Corpus, Corpus | None]:
    """Return the pairs to train on, up to --max-length, and to validate on. Raises UserError if all are longer."""
    max_length = settings.model.max_length
    pieces = None if settings.model.form is None else _pieces(settings, resumed)
    corpus = training_set(settings.corpus, settings.encoding, pieces, max_length)
    vocabulary = corpus.vocabulary
    if resumed:
        vocabulary = load_vocabulary(settings.run.directory / VOCABULARY)
    elif settings.run.init_from is not None and pieces is None:
        vocabulary = grown_vocabulary(other_attempt(settings), vocabulary)
    if vocabulary.fingerprint() != corpus.vocabulary.fingerprint():
        corpus = training_set(settings.corpus, settings.encoding, vocabulary, max_length)
    validation = validation_set(settings.corpus, settings.encoding, vocabulary, max_length)
    shards = dataclasses.replace(corpus.shards, max_length=max_length)
    if not shards.lengths.pairs:
        needed = corpus.shards.lengths.sides.max(axis=0).min()
        raise UserError(
            f"--max-length {max_length}: every pair is longer, the shortest has {counted(needed, 'token')}; set "
            "--max-length to at least this number"
        )
    return dataclasses.replace(corpus, shards=shards), validation


def _pieces(settings: Settings, resumed: bool) -> Vocabulary:
    """Return the tokens of the pretrained model that an attempt, or the one before it, begins with."""
    from chatbot.pretrained.folder import pretrained_model
    from chatbot.pretrained.tokens import piece_vocabulary

    if resumed or (model := pretrained_model(settings.run.init_from)) is None:
        return load_vocabulary((settings.run.directory if resumed else other_attempt(settings)) / VOCABULARY)
    vocabulary, _ = piece_vocabulary(model.tokenizer(), model.config)
    beginning = "".join(f" {piece}" for piece in vocabulary.description["beginning"]) or " no token of their own"
    facts = f"{len(vocabulary):,} tokens; texts begin with{beginning}"
    print(f"Beginning with the pretrained model in {model.folder}: {facts}.")
    return vocabulary


def _decides(validation: Corpus | None) -> bool:
    return validation is not None and validation.pairs >= FEWEST_DECIDING


def _print_validation(settings: Settings, validation: Corpus) -> None:
    """Print what is validated on, and whether it is enough to judge by."""
    pairs = counted(validation.pairs, "pair")
    if settings.encoding.validation == AUTO and validation_files(settings.corpus) is None:
        chosen_by = "their conversation" if settings.encoding.history else "their question"
        print(
            f"Validating on {pairs} held out of the training data, chosen by {chosen_by} (--validation none trains on "
            "all)."
        )
    else:
        print(f"Validating on {pairs} of {', '.join(report.file for report in validation.reports)}.")
        _print_reports(validation.reports)
    if not _decides(validation):
        print(
            f"  {pairs}, too few to judge by (at least {FEWEST_DECIDING}): the likelihood is reported, but does not "
            "end the run, and the last checkpoint is used."
        )


def _print_training(settings: Settings, corpus: Corpus) -> None:
    """Print which files are trained on and what was left out of them, and some pairs."""
    if names := left_out(settings.corpus):
        print(f"Left out: {', '.join(names)}.")
    files = [report.file for report in corpus.reports if report.pairs]
    first_files = ", ".join(files[:FILES_SHOWN])
    if len(files) > FILES_SHOWN:
        first_files += f" and {counted(len(files) - FILES_SHOWN, 'other file')}"
    pairs = corpus.shards.lengths.pairs
    tokens = counted(len(corpus.vocabulary), "token")
    print(f"Training on {counted(pairs, 'pair')} of {first_files}; {tokens} in the vocabulary.")
    _print_reports(corpus.reports)
    if pairs < corpus.pairs:
        longest = settings.model.max_length
        print(f"  left out: pairs longer than --max-length {longest} tokens: {corpus.pairs - pairs:,}")
    for pair in corpus.shards.spread(SAMPLES):
        question, reply = (" ".join(corpus.vocabulary.tokens_of(side)) for side in pair)
        print(visible(f"  {question} -> {reply}"))
    if turns := settings.encoding.history:
        later = sum(with_history(part.sources, corpus.vocabulary.first_mark) for part in corpus.shards)
        print(f"--history {turns}: {later:,} of these pairs with turns before the question.")


def _print_reports(reports: list[Report]) -> None:
    for report in reports:
        if not report.dropped and not report.unused and len(reports) > FILES_SHOWN:
            continue  # of many files, only those with dropped pairs are shown
        kinds = ", ".join([*report.formats, *report.charsets])
        print(f"  {report.file}: {kinds}, {counted(report.pairs, 'pair')}")
        for line in described(report):
            print(f"  {line}")


def read_probe(file: str | None) -> list[str]:
    """Return the first questions of a text file, one a line; none for None or "none".

    Raises UserError for a file that cannot be read, that is not in UTF-8, or that has no question.
    """
    if file is None or file == NONE:
        return []
    remedy = "give a text file with a question in each line"
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"--probe {file}: cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"--probe {file}: not a text in UTF-8; {remedy}, in UTF-8") from None
    questions = [line.strip() for line in text.splitlines() if line.strip()][:MOST_QUESTIONS]
    if not questions:
        raise UserError(f"--probe {file}: no question; {remedy}")
    return questions


def probe_samples(questions: Sequence[str], settings: Settings, vocabulary: Vocabulary) -> list[Sample]:
    """Return the questions as chat reads them, without a reference. One without tokens is left out."""
    tokens = tokens_of(settings.corpus)
    encoded = ((question, vocabulary.ids(tokens(question[:MOST_CHARACTERS]))) for question in questions)
    longest = settings.model.max_length
    return [Sample(source_of([ids], vocabulary, longest), question, "") for question, ids in encoded if ids]


def grown_vocabulary(directory: Path, new: Vocabulary) -> Vocabulary:
    """Return the tokens of a corpus, those that only the attempt in the directory has, and the bytes."""
    old = load_vocabulary(directory / VOCABULARY)
    tokens = new.tokens[len(SPECIALS) : new.first_byte]
    known = set(tokens)
    kept = [token for token in old.tokens[len(SPECIALS) : old.first_byte] if token not in known]
    added = f"{counted(len(known - set(old.tokens)), 'new token')} of the pairs"
    print(f"Beginning with the weights of {directory}: {added}, and {len(kept):,} kept that the pairs do not have.")
    return Vocabulary([*tokens, *kept, *BYTES])


def preset_values(settings: Settings, pairs: int, validated: bool) -> dict[str, Any]:
    """Return the preset of a new attempt and the values that it sets, by name, and print them.

    Values that given settings exclude are left out. pairs: the number of training pairs. validated: whether there are
    validation pairs; without them, pairs are learned by heart, which needs no preset.
    """
    by_pairs = preset_for(pairs) if validated else NONE
    name = by_pairs if settings.run.preset == AUTO else settings.run.preset
    chosen: dict[str, Any] = {"preset": name}
    if name == NONE:
        return chosen
    excluded = {}
    for setting, value in values_of_preset(name, settings.model.architecture).items():
        if setting not in settings.run.not_given:
            continue
        try:
            replace(settings, **chosen, **{setting: value})
        except UserError:
            excluded[setting] = value
        else:
            chosen[setting] = value
    values = flags_for(Settings, {key: value for key, value in chosen.items() if key != "preset"}) or "sets nothing"
    without = f"; without {flags_for(Settings, excluded)}, which other settings exclude" if excluded else ""
    print(f"Preset {name}, for {counted(pairs, 'pair')} (--preset): {values}{without}.")
    return chosen
