"""The sizes and the vocabulary of a new attempt that begins with another one's weights (--init-from)."""

from pathlib import Path

from chatbot.config.attempts import CONFIG, VOCABULARY, trained_directory
from chatbot.config.stored import changed_sizes, stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import BYTES, SPECIALS, Vocabulary, load_vocabulary
from chatbot.corpus.reading.display import counted
from chatbot.errors import UserError
from chatbot.training.streams import print_wrapped


def other_attempt(settings: Settings) -> Path:
    """Return the directory of the attempt of --init-from.

    Raises UserError when there is none, and when its weights are not of the sizes of these settings.
    """
    name = settings.run.init_from
    assert name is not None
    directory = trained_directory(name, "--init-from")
    if changed := changed_sizes(stored_settings(directory / CONFIG), settings):
        raise UserError(
            f"--init-from {name}: an attempt of other sizes to start from: {'; '.join(changed)}; leave these flags out "
            "to take its sizes"
        )
    return directory


def grown_vocabulary(directory: Path, new: Vocabulary) -> Vocabulary:
    """Return the tokens of a corpus, followed by those that only the attempt in the directory has, and the bytes.

    The order remains that of the frequency: what is not in the vocabulary of the corpus is rarer in it, or absent.
    new: the vocabulary of the corpus.
    """
    old = load_vocabulary(directory / VOCABULARY)
    tokens = new.tokens[len(SPECIALS) : new.first_byte]
    known = set(tokens)
    kept = [token for token in old.tokens[len(SPECIALS) : old.first_byte] if token not in known]
    added = counted(len(known - set(old.tokens)), "new token")
    print_wrapped(
        f"Beginning with the weights of {directory}: {added} of the pairs, and {len(kept):,} kept that the pairs "
        "do not have."
    )
    return Vocabulary([*tokens, *kept, *BYTES])
