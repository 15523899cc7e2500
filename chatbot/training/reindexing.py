"""Looks the training pairs of an attempt up by meaning, too, or no longer."""

from chatbot.attempts.description import check_not_training
from chatbot.attempts.files import RETRIEVAL, VOCABULARY, trained_directory
from chatbot.config.attempts import IndexSettings
from chatbot.corpus.dataset import validation_set
from chatbot.corpus.vocabulary import load_vocabulary
from chatbot.display import counted
from chatbot.errors import UserError


def index(settings: IndexSettings) -> None:
    """Index the pairs of an attempt by --embeddings, and fit its judge anew. Raises UserError.

    The held-out pairs are read from the files of the attempt; where they are gone, the weights before fitting are used.
    """
    (name,) = settings.names
    directory = trained_directory(name, "index")
    check_not_training(directory)
    folder = directory / RETRIEVAL
    if not folder.exists():
        raise UserError(f"index {name}: it keeps no training pairs; run its training command again")
    from chatbot.retrieval.fitting import MOST_QUESTIONS, fit_judge
    from chatbot.retrieval.indexing import index_by_meaning

    vocabulary = load_vocabulary(directory / VOCABULARY)
    index_by_meaning(folder, vocabulary, settings.embeddings)
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    from chatbot.attempts.trained import load_trained
    from chatbot.inference.tensorflow_model import TensorFlowModel

    trained = load_trained(directory)
    own = trained.settings
    held_out = []
    try:
        corpus = validation_set(own.corpus, own.encoding, vocabulary, own.model.max_length)
        held_out = [] if corpus is None else [*corpus.shards.spread(MOST_QUESTIONS)]
    except UserError as error:
        print(f"Warning: the judge is not fitted, since its held-out pairs cannot be read ({error}).")
    both = own.learning.both_directions == "on"
    fit_judge(folder, vocabulary, TensorFlowModel(trained.model), both, held_out)
    assert trained.retrieval is not None
    by = "characters" if trained.retrieval.meaning is None else "characters and by meaning"
    print(f"{name}: {counted(len(trained.retrieval), 'pair')}, looked up by {by}.")
