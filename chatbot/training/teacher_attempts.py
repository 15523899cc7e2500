"""The attempts of --distil-from, found and checked before TensorFlow is imported."""

from pathlib import Path

from chatbot.config.attempts import CONFIG, VOCABULARY, trained_directory
from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import Vocabulary, load_vocabulary
from chatbot.errors import UserError


def check_teachers(settings: Settings, vocabulary: Vocabulary, both_directions: bool) -> None:
    """Raise UserError for a teacher that is missing, or has another vocabulary or fewer directions than the run."""
    for name, directory in teacher_directories(settings):
        if load_vocabulary(directory / VOCABULARY).fingerprint() != vocabulary.fingerprint():
            raise UserError(
                f"--distil-from {name}: its vocabulary is not that of this run; train it on the same pairs with the "
                "same --vocabulary-size, --tokenizer, --clean and --validation"
            )
        if both_directions and stored_settings(directory / CONFIG).learning.both_directions == "off":
            raise UserError(
                f"--distil-from {name}: it learned replies only; add --both-directions off to a new attempt"
            )


def teacher_directories(settings: Settings) -> list[tuple[str, Path]]:
    """Return the name and the directory of each teacher. Raises UserError for one that is missing."""
    directories = []
    for name in settings.learning.teachers:
        try:
            directory = trained_directory(name, "--distil-from")
        except UserError as error:
            raise UserError(f"{error}; --distil-weight 0 trains without teachers") from None
        if directory == settings.run.directory:
            raise UserError(f"--distil-from {name}: an attempt cannot teach itself; choose another --attempt")
        directories.append((name, directory))
    return directories
