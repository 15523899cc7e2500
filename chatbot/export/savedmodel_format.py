"""Exports to a SavedModel, which generates replies with TensorFlow alone.

docs/export.md documents the signatures. Scores are log-probabilities in nats, adjusted by the decoding settings. The
signature `reply` uses the search chosen at export. By default, this is the search of chat.py without retrieval.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from chatbot.attempts.files import VOCABULARY
from chatbot.attempts.trained import Trained
from chatbot.config.decoding import ONE_SAMPLE, TOKENS, DecodingSettings
from chatbot.corpus.pieces import SPACE
from chatbot.corpus.vocabulary import ASK, EOS, PAD, SPECIALS, UNK, PieceVocabulary, Vocabulary
from chatbot.decoding.ngram_mixture import NgramMixture
from chatbot.decoding.ngrams import Ngrams
from chatbot.decoding.search import length_penalty
from chatbot.export.model import Stored, plain_model, sequences_in_graph, with_weights
from chatbot.flags import flags_of
from chatbot.inference.replier import for_attempt, reply_automaton
from chatbot.inference.tensorflow_model import search_graph, target_log_probabilities
from chatbot.model.seq2seq import Seq2Seq

# The beam size of the signature `beam`, unless `reply` uses beam search, too.
BEAMS = 5

# The token ids and scores of replies, with dtypes int32 and float32.
Pair = tuple[tf.Tensor, tf.Tensor]
RESULTS = tf.int32, tf.float32
# Search functions map question ids [rows, time] and optional random numbers to the ids and scores of replies.
Compute = Callable[[tf.Tensor, tf.Tensor | None], Pair]


def write_savedmodel(folder: Path, trained: Trained, weights: Sequence[Stored], decoding: DecodingSettings) -> None:
    """Export an attempt as a SavedModel.

    Args:
        folder: An existing folder.
        trained: The attempt.
        weights: The weights to store, in the order of the trainable variables.
        decoding: The decoding settings of the signature `reply`.

    Raises:
        UserError: The attempt does not support the decoding settings.
    """
    settings = trained.settings.model
    vocabulary = trained.vocabulary
    decoding = for_attempt(decoding, trained.settings, vocabulary)
    module = tf.Module()
    module.values = [tf.Variable(x.values, trainable=False) for x in weights]
    module.scales = [tf.Variable(x.scales, trainable=False) for x in weights]
    model = plain_model(trained, _share_ngrams(module, trained.model.ngrams))
    builder = _SignatureBuilder(module, model, vocabulary, settings.max_length)
    asset = folder / "assets" / VOCABULARY
    asset.parent.mkdir()
    asset.write_bytes(vocabulary.content())
    signatures = {
        "ids": _to_ids(module, vocabulary, asset, settings.max_length),
        **{name: builder.search(search) for name, search in _searches(decoding).items()},
        "reply": builder.best(decoding),
    }
    module.functions = signatures
    tf.saved_model.save(module, str(folder), signatures)


def _searches(decoding: DecodingSettings) -> dict[str, DecodingSettings]:
    """Return the decoding settings of the signatures `greedy`, `beam` and `sample`.

    If a signature uses the same kind of search as `reply`, it has the same settings, but without --rerank. The other
    signatures only have the settings that apply to every search.
    """
    flags = flags_of(DecodingSettings).items()
    names = [name for name, flag in flags if flag.group == TOKENS] + ["length_penalty"]
    common = {name: getattr(decoding, name) for name in names}
    unranked = dataclasses.replace(decoding, rerank=None)
    return {
        "greedy": DecodingSettings(beam_size=1, **common),
        "beam": unranked if decoding.beams > 1 else DecodingSettings(beam_size=BEAMS, **common),
        "sample": unranked if decoding.samples else DecodingSettings(**{**common, **ONE_SAMPLE}),
    }


@dataclasses.dataclass(frozen=True)
class _SignatureBuilder:
    """Builds the signatures that search for replies.

    Attributes:
        module: The module that stores the weights in the variables `values` and `scales`.
        model: The model.
        vocabulary: The vocabulary of the model.
        max_length: The maximum length of a reply in tokens.
    """

    module: tf.Module
    model: Seq2Seq
    vocabulary: Vocabulary
    max_length: int

    def search(self, decoding: DecodingSettings) -> Any:
        """Build a signature that returns the ids and scores of all hypotheses."""
        return self._signature(decoding, self._search(decoding), lambda ids, scores: {"ids": ids, "scores": scores})

    def best(self, decoding: DecodingSettings) -> Any:
        """Build a signature that returns the text and the score of the best reply."""
        search = self._search(decoding)
        texts = tf.constant(self.vocabulary.texts)

        def find_best(ids: tf.Tensor, uniform: tf.Tensor | None) -> Pair:
            replies, scores = search(ids, uniform)
            if decoding.compares_samples:
                scores /= length_penalty(tf.math.count_nonzero(replies, axis=-1), decoding)
            if decoding.rerank:
                scores += decoding.rerank * self._reverse_scores(ids, replies, decoding)
            best = tf.argmax(scores, axis=-1)  # [rows]
            return tf.gather(replies, best, batch_dims=1), tf.gather(scores, best, batch_dims=1)

        def as_text(ids: tf.Tensor, score: tf.Tensor) -> dict[str, tf.Tensor]:
            text = tf.strings.reduce_join(tf.gather(texts, ids), axis=-1)
            return {"text": tf.strings.strip(tf.strings.regex_replace(text, SPACE, " ")), "score": score}

        return self._signature(decoding, find_best, as_text)

    def _search(self, decoding: DecodingSettings) -> Compute:
        """Return a search function, which maps question ids and random numbers to the ids and scores of hypotheses."""
        automaton = reply_automaton(decoding, self.vocabulary, self.max_length)
        return lambda ids, uniform: search_graph(self.model, decoding, automaton, sequences_in_graph(ids), uniform)

    def _signature(self, decoding: DecodingSettings, compute: Compute, name_results: Callable[..., Any]) -> Any:
        """Build a signature that runs a search.

        Args:
            decoding: The decoding settings.
            compute: The search function.
            name_results: A function that converts the ids and scores to named outputs.
        """

        def signature(ids: tf.Tensor, **numbers: tf.Tensor) -> dict[str, tf.Tensor]:
            ids = ids[:, : self.max_length]
            uniform = numbers.get("uniform")
            with with_weights(self.model, self._weights()):
                if not decoding.compares_samples and not decoding.rerank:
                    return name_results(*compute(ids, uniform))

                def answer_one(row: tf.Tensor) -> Pair:
                    # A slice has a dynamic number of rows, which the search needs to remove finished rows.
                    question = ids[row : row + 1]  # [1, time]
                    row_uniform = None if uniform is None else uniform[row : row + 1]
                    replies, scores = compute(question[:, : tf.math.count_nonzero(question)], row_uniform)
                    return replies[0], scores[0]

                # Questions are searched one by one, because --rerank requires much memory. The candidates of a question
                # already form a batch.
                return name_results(*tf.map_fn(answer_one, tf.range(tf.shape(ids)[0]), fn_output_signature=RESULTS))

        specs = {"ids": tf.TensorSpec([None, None], tf.int64, name="ids")}
        if decoding.samples:
            shape = [None, decoding.hypotheses, self.max_length]
            specs["uniform"] = tf.TensorSpec(shape, tf.float32, name="uniform")
        return tf.function(signature, autograph=False).get_concrete_function(**specs)

    def _weights(self) -> list[tf.Tensor]:
        """Return all weights converted to float32."""
        pairs = zip(self.module.values, self.module.scales, strict=True)
        return [value if value.dtype == tf.float32 else tf.cast(value, tf.float32) * scale for value, scale in pairs]

    def _reverse_scores(self, ids: tf.Tensor, replies: tf.Tensor, decoding: DecodingSettings) -> tf.Tensor:
        """Return the log-probability of each question given each reply, which --rerank uses, [rows, hypotheses].

        Args:
            ids: The ids of the questions, with shape [rows, time].
            replies: The ids of the replies, with shape [rows, hypotheses, max_length].
            decoding: The decoding settings.
        """
        if self.vocabulary.has_marks:
            ids = ids[:, 1:]  # Remove the speaker mark before the question.
        rows = tf.shape(replies)[0]
        hypotheses = decoding.hypotheses
        sources = tf.cast(tf.where(replies == EOS, PAD, replies), tf.int64)
        ends = tf.one_hot(tf.math.count_nonzero(ids, axis=1), tf.shape(ids)[1] + 1, EOS, 0, dtype=tf.int64)
        targets = tf.pad(ids, [[0, 0], [0, 1]]) + ends  # [rows, time + 1]
        target_in = tf.concat([tf.fill([rows, 1], tf.constant(ASK, tf.int64)), ids], axis=1)
        target_in = tf.repeat(target_in, hypotheses, axis=0)  # [rows * hypotheses, time + 1]
        sources = tf.reshape(sources, [rows * hypotheses, -1])
        repeated = tf.reshape(tf.repeat(targets, hypotheses, axis=0), [-1])
        scores = target_log_probabilities(
            self.model, sequences_in_graph(sources), sequences_in_graph(target_in), repeated
        )
        lengths = tf.math.count_nonzero(targets, axis=1)[:, None]  # [rows, 1]
        return tf.reshape(scores, [rows, hypotheses]) / length_penalty(lengths, decoding)


def _share_ngrams(module: tf.Module, mixture: NgramMixture | None) -> Ngrams | None:
    """Store the n-grams in variables of the module, so all signatures can share them."""
    if mixture is None:
        return None
    shared = mixture.ngrams.converted(functools.partial(tf.Variable, trainable=False))
    module.unigrams = shared.unigrams
    module.orders = [{**vars(order)} for order in shared.orders]
    return shared


def _to_ids(module: tf.Module, vocabulary: Vocabulary, asset: Path, max_length: int) -> Any:
    """Build the signature `ids`, which converts the tokens of questions to ids like `Vocabulary.ids`.

    If the vocabulary has speaker marks, each question starts with a mark. The result is cut to max_length ids.
    """
    if isinstance(vocabulary, PieceVocabulary):
        return _pieces_to_ids(module, vocabulary, max_length)
    module.asset = tf.saved_model.Asset(str(asset))
    lines = tf.lookup.TextFileInitializer(
        module.asset, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module.table = tf.lookup.StaticHashTable(lines, -1)
    first_mark = vocabulary.first_mark
    first_byte = vocabulary.first_byte

    def lookup(texts: tf.Tensor) -> tf.Tensor:
        """Return the ids of texts, or -1 for unknown texts. Byte tokens and speaker marks do not match any text."""
        ids = module.table.lookup(texts) + len(SPECIALS)
        return tf.where((ids >= len(SPECIALS)) & (ids < first_mark), ids, -1)

    def spell(character: tf.Tensor) -> tf.RaggedTensor:
        """Encode characters as the ids of their bytes: [n] -> [n, (ids)]."""
        values = tf.strings.bytes_split(character)
        codes = tf.reshape(tf.io.decode_raw(values.values, tf.uint8), [-1])
        return values.with_values(tf.cast(codes, tf.int64) + first_byte)

    def encode(texts: tf.Tensor, fallback: Callable[[tf.Tensor], tf.RaggedTensor]) -> tf.RaggedTensor:
        """Convert texts to ids. The fallback converts unknown texts: [n] -> [n, (ids)]."""
        ids = lookup(texts)
        unknown = tf.where(ids < 0)[:, 0]
        known = tf.RaggedTensor.from_tensor(ids[:, None])
        candidates = tf.concat([known, fallback(tf.gather(texts, unknown))], axis=0)
        number = tf.size(texts, tf.int64)
        spelled_indices = number + tf.range(tf.size(unknown, tf.int64))
        return tf.gather(candidates, tf.tensor_scatter_nd_update(tf.range(number), unknown[:, None], spelled_indices))

    def encode_characters(texts: tf.Tensor) -> tf.RaggedTensor:
        characters = tf.strings.unicode_split(texts, "UTF-8")  # [n, (characters)]
        ids = characters.with_values(encode(characters.values, spell))  # [n, (characters), (ids)]
        return ids.merge_dims(1, 2)

    def signature(tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.RaggedTensor.from_tensor(tokens, padding="")  # [rows, (tokens)]
        ids = rows.with_values(encode(rows.values, encode_characters)).merge_dims(1, 2)
        if vocabulary.has_marks:
            marks = tf.fill([tf.shape(tokens)[0], 1], tf.constant(first_mark, tf.int64))
            ids = tf.concat([tf.RaggedTensor.from_tensor(marks), ids], axis=1)
        # Questions are cut here because the random numbers of the chat depend on the cut questions.
        return {"ids": ids[:, :max_length].to_tensor(PAD)}

    spec = tf.TensorSpec([None, None], tf.string, name="tokens")
    return tf.function(signature, autograph=False).get_concrete_function(tokens=spec)


def _pieces_to_ids(module: tf.Module, vocabulary: PieceVocabulary, max_length: int) -> Any:
    """Build the signature `ids` for a pretrained model's vocabulary. Unknown tokens become UNK, and empty texts PAD."""
    ids = tf.lookup.KeyValueTensorInitializer([*vocabulary.id_of], [*vocabulary.id_of.values()], tf.string, tf.int64)
    module.table = tf.lookup.StaticHashTable(ids, UNK)

    def signature(tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"ids": tf.where(tokens == "", tf.constant(PAD, tf.int64), module.table.lookup(tokens))[:, :max_length]}

    spec = tf.TensorSpec([None, None], tf.string, name="tokens")
    return tf.function(signature, autograph=False).get_concrete_function(tokens=spec)
