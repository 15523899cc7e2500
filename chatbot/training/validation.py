"""Validation during training: the likelihood of the validation pairs, and measures of generated replies."""

import os
import sys
from collections.abc import Sequence
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
from chatbot.retrieval.fitting import MAX_QUESTIONS, fit_judge
from chatbot.retrieval.index import load_retrieval
from chatbot.training.data import Data
from chatbot.training.devices.failures import RESUME, is_out_of_memory
from chatbot.training.devices.towers import Tower

# When memory runs out, the batch size is halved, but not below this number of tokens.
MIN_POSITIONS = 16

# Replies are considered collapsed if the ten most common ones make up a larger fraction of all replies than the ten
# most common references do of all references, by more than this margin.
COLLAPSE_MARGIN = 0.25


class Validation(NamedTuple):
    """The result of a validation."""

    values: dict[str, float | None]  # metrics by name: likelihood of the references, and measures of the replies
    warning: str | None  # warning if the replies have collapsed; see `Collapse`
    replies: list[str]  # replies to the sample questions and --probe questions, `Data.questions`


class Validator:
    """Validates a model during training. Graphs are traced on first use and then reused.

    The likelihood of questions given generated replies is slow to compute. It is only computed if --best-by selects
    checkpoints by this measure.

    Args:
        model: The model, on the device of the first tower.
        data: The pairs of the run.
        settings: The settings of the run.
        towers: The towers whose devices share the work. When memory runs out, the first device continues alone, with
            smaller batches.
    """

    def __init__(self, model: Seq2Seq, data: Data, settings: Settings, towers: Sequence[Tower]) -> None:
        self._towers = towers
        self._copies = DeviceCopies(model, validation_devices(towers))
        self._data = data
        self._settings = settings
        self._chat_model = TensorFlowModel(model)
        self._questions = [sample.ids for sample in data.questions]
        self._measured = [sample.ids for sample in data.measured]
        self._score = Scorer(model, self._copies)
        self._replier = Replier(TensorFlowModel(model, self._copies), data.vocabulary, settings.model)
        scorer = self._score if settings.learning.best_by == QUESTION_NATS else None
        self._measure = Measurer(data.measured, data.vocabulary, tokens_of(settings.corpus), scorer)
        self._collapse = Collapse(top_share(self._measure.references, 10))

    def validate(self, corpus: Corpus) -> Validation:
        """Score all validation pairs, and generate and measure replies to some of their questions.

        Raises:
            UserError: If there is not enough memory for a single pair.
        """
        while True:
            try:
                return self._validate_once(corpus)
            except tf.errors.OpError as error:
                if not is_out_of_memory(error, self._towers):
                    raise
                if self._score.positions <= MIN_POSITIONS:
                    raise UserError(
                        "out of memory in validation, with one pair at a time; free memory on the device, then run it "
                        f"again: {RESUME}"
                    ) from error
            self._copies.keep_first()
            self._score.positions //= 2
            smaller = f"{self._towers[0].name} alone, in batches of {self._score.positions:,} positions"
            tqdm.write(f"Warning: out of memory in validation; continuing on {smaller}.", file=sys.stderr)

    def _validate_once(self, corpus: Corpus) -> Validation:
        likelihood = self._score(corpus.shards)
        measured = self._replier.replies(self._measured)
        values = self._measure(measured)
        if values[QUESTION_NATS] is None:
            del values[QUESTION_NATS]  # It was not computed. In metrics.jsonl, null would mean NaN or infinity.
        values = {
            "nats_per_token": likelihood.nats_per_token,
            "nats_per_character": likelihood.nats_per_character,
            **values,
        }
        return Validation(values, self._collapse.warning(measured), self.replies())

    def replies(self) -> list[str]:
        """Return the reply to each of `Data.questions`, found by greedy search."""
        return self._replier.replies(self._questions)

    def chat_replies(self) -> list[str]:
        """Return the reply to each of `Data.questions`, found by the attempt's default search, as in chat."""
        directory = self._settings.run.directory
        vocabulary = self._data.vocabulary
        decoding = with_default_search(DecodingSettings(), directory)
        retrieval = load_retrieval(directory / RETRIEVAL, vocabulary) if decoding.retrieved else None
        if retrieval is not None and not retrieval.is_validated:
            # Without validation, all replies are retrieved, so the search does not have to be traced.
            self._replier.retrieval = retrieval
            return self._replier.with_lookup(decoding).replies(self._questions)
        return Replier(self._chat_model, vocabulary, self._settings.model, decoding, retrieval).replies(self._questions)

    def fit_judge(self) -> None:
        """Fit the judge of retrieved replies, if the attempt stores its training pairs.

        Raises:
            UserError: If the index of the pairs is damaged.
            OSError: If a file cannot be written.
        """
        folder = self._settings.run.directory / RETRIEVAL
        data = self._data
        if folder.exists():
            held_out = [*data.validation.shards.spread(MAX_QUESTIONS)] if data.validation else []
            fit_judge(folder, data.vocabulary, self._chat_model, held_out)


def validation_devices(towers: Sequence[Tower]) -> list[str]:
    """Return the devices that share the work of validation, starting with the device of the first tower.

    On CPUs, there are at most as many devices as cores. With --model-parallel, the list is empty, because validation
    needs less memory than training and runs on a single device.
    """
    devices = [tower.device for tower in towers if tower.parts is None]
    on_gpus = all("GPU" in device for device in devices)
    return devices[: None if on_gpus else os.cpu_count()]


class Collapse:
    """Detects when a model gives the same few replies to most questions.

    Args:
        reference_share: The fraction of the references that are among the ten most common ones, for comparison.
    """

    def __init__(self, reference_share: float) -> None:
        self._reference_share = reference_share
        self._collapsed = False

    def warning(self, replies: Sequence[str]) -> str | None:
        """Return a warning if the replies have collapsed, unless they had already done so in the last validation."""
        had_collapsed = self._collapsed
        share = top_share(replies, 10)
        self._collapsed = share > self._reference_share + COLLAPSE_MARGIN
        if had_collapsed or not self._collapsed:
            return None
        return (
            f"replies collapse: the ten most common make up {share:.0%} of {len(replies):,} replies, but "
            f"{self._reference_share:.0%} of the references"
        )
