"""The `index` command, which adds semantic retrieval of training pairs to a trained model, or removes it."""

from chatbot.attempts.description import check_not_training
from chatbot.attempts.files import RETRIEVAL, VOCABULARY, trained_directory
from chatbot.config.attempts import IndexSettings
from chatbot.corpus.dataset import validation_set
from chatbot.corpus.vocabulary import load_vocabulary
from chatbot.display import pluralize
from chatbot.errors import UserError


def index(settings: IndexSettings) -> None:
    """Index the training pairs of an attempt with an embedding model, and refit the judge.

    The judge scores retrieved replies. It is fitted to validation pairs, which are read from the data files of the
    attempt. If these files cannot be read, the judge uses default weights.

    Raises:
        UserError: If the attempt cannot be indexed.
    """
    name = settings.attempt
    directory = trained_directory(name, "index")
    check_not_training(directory)
    folder = directory / RETRIEVAL
    if not folder.exists():
        raise UserError(f"index {name}: the attempt has no training pairs; run its training command again")
    from chatbot.retrieval.fitting import MAX_QUESTIONS, fit_judge
    from chatbot.retrieval.indexing import index_by_meaning

    vocabulary = load_vocabulary(directory / VOCABULARY)
    index_by_meaning(folder, vocabulary, settings.embeddings)
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    from chatbot.attempts.trained import load_trained
    from chatbot.inference.tensorflow_model import TensorFlowModel

    trained = load_trained(directory)
    stored = trained.settings
    held_out = []
    try:
        corpus = validation_set(stored.corpus, stored.encoding, vocabulary, stored.model.max_length)
        held_out = [] if corpus is None else [*corpus.shards.spread(MAX_QUESTIONS)]
    except UserError as error:
        print(f"Warning: the judge is not fitted, because the validation pairs cannot be read ({error}).")
    fit_judge(folder, vocabulary, TensorFlowModel(trained.model), held_out)
    assert trained.retrieval is not None
    by = "characters" if trained.retrieval.meaning is None else "characters and by meaning"
    print(f"{name}: {pluralize(len(trained.retrieval), 'pair')}, indexed by {by}.")
