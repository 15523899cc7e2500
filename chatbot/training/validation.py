"""Validation during a run: the likelihood of held-out pairs, and replies to questions of some of them."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from tqdm import tqdm

from chatbot.attempts.files import RETRIEVAL
from chatbot.attempts.settings import with_default_search
from chatbot.config.decoding import DecodingSettings
from chatbot.config.learning import QUESTION_NATS
from chatbot.config.training import Settings
from chatbot.corpus.dataset import Corpus
from chatbot.corpus.tokenizer import tokens_of
from chatbot.errors import UserError
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.measures import Measurer, top_share
from chatbot.inference.replier import Replier
from chatbot.inference.tensorflow_model import TensorFlowModel
from chatbot.model.device_copies import DeviceCopies
from chatbot.model.seq2seq import Seq2Seq
from chatbot.retrieval.fitting import MOST_QUESTIONS, fit_judge
from chatbot.retrieval.index import load_retrieval
from chatbot.retrieval.indexing import index_by_meaning
from chatbot.training.data import Data
from chatbot.training.devices.failures import RESUME, is_out_of_memory
from chatbot.training.devices.towers import Tower

# Batches of fewer positions have one pair each.
FEWEST_POSITIONS = 16

# Replies collapse when the ten most common have a share of all that is larger than that of the references by this much.
COLLAPSE_MARGIN = 0.25


class Validation(NamedTuple):
    """The result of a validation."""

    values: dict[str, float | None]  # by name: the likelihood of all references, and the replies to `Data.measured`
    warning: str | None  # about these replies
    replies: list[str]  # to `Data.questions`: the sample questions, and those of --probe


class Validator:
    """Measures a model that is being trained. Its graphs are traced once, at the first use.

    The likelihood of the questions given the replies takes longer than all other measures of replies. It is computed
    only if it decides which checkpoint is the best.

    towers: those that share the work, the first of which has the model on its device. The values are the same for any
    number of them, up to rounding. When memory runs out, the first one validates alone, in smaller batches.
    """

    def __init__(self, model: Seq2Seq, data: Data, settings: Settings, towers: Sequence[Tower]) -> None:
        self._towers = towers
        self._copies = DeviceCopies(model, devices_of(towers))
        self._model = model
        self._vocabulary = data.vocabulary
        self._settings = settings.model
        self._chat_model = TensorFlowModel(model)
        self._questions = [sample.ids[: settings.model.max_length] for sample in data.questions]
        self._measured = [sample.ids for sample in data.measured]
        self._score = Scorer(model, self._copies)
        self._replier = Replier(TensorFlowModel(model, self._copies), data.vocabulary, settings.model)
        scorer = self._score if settings.learning.best_by == QUESTION_NATS else None
        self._measure = Measurer(data.measured, data.vocabulary, tokens_of(settings.corpus), scorer)
        self._collapse = Collapse(top_share(self._measure.references, 10))

    def validate(self, corpus: Corpus) -> Validation:
        """Score all pairs of the corpus, measure the replies to some of its questions, and reply to the samples.

        Raises UserError if memory does not suffice even for one pair at a time.
        """
        while True:
            try:
                return self._validated(corpus)
            except tf.errors.OpError as error:
                if not is_out_of_memory(error, self._towers):
                    raise
                if self._score.positions <= FEWEST_POSITIONS:
                    raise UserError(
                        f"out of memory in validation, with one pair at a time; free memory on the device: then "
                        f"{RESUME}"
                    ) from error
            self._copies.keep_first()
            self._score.positions //= 2
            smaller = f"{self._towers[0].name} alone, in batches of {self._score.positions:,} positions"
            tqdm.write(f"Warning: out of memory in validation, which goes on with {smaller}.", file=sys.stderr)

    def _validated(self, corpus: Corpus) -> Validation:
        likelihood = self._score(corpus.shards)
        measured = self._replier.replies(self._measured)
        values = self._measure(measured)
        if values[QUESTION_NATS] is None:
            del values[QUESTION_NATS]  # not null: it was not computed
        values = {
            "nats_per_token": likelihood.nats_per_token,
            "nats_per_character": likelihood.nats_per_character,
            **values,
        }
        return Validation(values, self._collapse.warning(measured), self.replies())

    def replies(self) -> list[str]:
        """Return the best reply to each question of `Data.questions`, by greedy search."""
        return self._replier.replies(self._questions)

    def chat_replies(self, directory: Path) -> list[str]:
        """Return the reply to each question of `Data.questions` by the default search of the attempt in a directory."""
        decoding = with_default_search(DecodingSettings(), directory)
        retrieval = load_retrieval(directory / RETRIEVAL, self._vocabulary) if decoding.retrieved else None
        if retrieval is not None and not retrieval.is_validated:  # nothing is generated: no search is traced for it
            self._replier.retrieval = retrieval
            return self._replier.looking_up(decoding).replies(self._questions)
        replier = Replier(self._chat_model, self._vocabulary, self._settings, decoding, retrieval)
        return replier.replies(self._questions)

    def prepare_lookup(self, directory: Path, data: Data, embeddings: str | None) -> None:
        """Prepare how the attempt in a directory looks replies up, if it does, with the weights that the model has.

        embeddings: --embeddings. Raises UserError, OSError.
        """
        folder = directory / RETRIEVAL
        if not folder.exists():
            return
        index_by_meaning(folder, self._vocabulary, embeddings)
        held_out = [*data.validation.shards.spread(MOST_QUESTIONS)] if data.validation else []
        fit_judge(folder, self._vocabulary, self._chat_model, data.both_directions, held_out)


def devices_of(towers: Sequence[Tower]) -> list[str]:
    """Return the devices of the towers that share a validation, the first one's at first.

    A model that is spread over devices is validated on one, which needs less memory than training. Towers on the CPU
    share its cores, so that more of them than cores would only need more memory.
    """
    devices = [tower.device for tower in towers if tower.parts is None]
    on_gpus = all("GPU" in device for device in devices)
    return devices[: None if on_gpus else os.cpu_count()]


class Collapse:
    """Compares the replies of each validation with the references."""

    def __init__(self, references: float) -> None:
        """references: the share of their ten most common."""
        self._references = references
        self._collapsed = False

    def warning(self, replies: Sequence[str]) -> str | None:
        """Return a warning when the replies collapse, for the first time or after they had recovered; else None."""
        before = self._collapsed
        share = top_share(replies, 10)
        self._collapsed = share > self._references + COLLAPSE_MARGIN
        if before or not self._collapsed:
            return None
        return (
            f"replies collapse: the ten most common are {share:.0%} of {len(replies):,}; "
            f"references {self._references:.0%}"
        )
