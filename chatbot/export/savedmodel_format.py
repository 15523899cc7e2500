"""Export to a SavedModel, which TensorFlow answers from without this package.

docs/export.md lists its signatures. Scores are log-probabilities in nats, as the decoding settings change them. `reply`
has the search of the flags at the export, by default that of chat.py without looked-up replies.
"""

import dataclasses
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
from chatbot.decoding.ngrams import Ngrams, Order
from chatbot.decoding.search import length_penalty
from chatbot.export.model import Stored, plain_model, sequences_in_graph, with_weights
from chatbot.flags import flags_of
from chatbot.inference.replier import check_decoding, for_attempt, reply_automaton
from chatbot.inference.tensorflow_model import log_probabilities, search_graph
from chatbot.model.seq2seq import Seq2Seq

# Of the signature `beam`, if the search of `reply` is another one.
BEAMS = 5

# The ids and the scores of replies, int32 and float32, [rows, ...] each.
Pair = tuple[tf.Tensor, tf.Tensor]
RESULTS = tf.int32, tf.float32
Compute = Callable[[tf.Tensor, tf.Tensor | None], Pair]  # (ids [rows, time], uniform) -> ids and scores


def write_savedmodel(folder: Path, trained: Trained, weights: Sequence[Stored], decoding: DecodingSettings) -> None:
    """Write the SavedModel of an attempt.

    weights: in the order of the model's trainable variables. decoding: the search of `reply`. Raises UserError for
    decoding settings that the attempt does not admit.
    """
    settings = trained.settings.model
    vocabulary = trained.vocabulary
    decoding = for_attempt(decoding, trained.settings)
    check_decoding(decoding, vocabulary, settings)
    module = tf.Module()
    module.values = [tf.Variable(x.values, trainable=False) for x in weights]
    module.scales = [tf.Variable(x.scales, trainable=False) for x in weights]
    model = plain_model(trained, _shared(module, trained.model.ngrams))
    made = _Signatures(module, model, vocabulary, settings.max_length)
    asset = folder / "assets" / VOCABULARY
    asset.parent.mkdir()
    asset.write_bytes(vocabulary.content())
    signatures = {
        "ids": _to_ids(module, vocabulary, asset, settings.max_length),
        **{name: made.search(settings_of_search) for name, settings_of_search in _searches(decoding).items()},
        "reply": made.best(decoding),
    }
    module.functions = signatures
    tf.saved_model.save(module, str(folder), signatures)


def _searches(decoding: DecodingSettings) -> dict[str, DecodingSettings]:
    """Return the search of each signature: that of `reply` without `--rerank`, where it is of that kind.

    Else it has those settings of `reply` that change the tokens of a reply, whatever the search.
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
class _Signatures:
    """Makes the signatures that search.

    module: its `values` times `scales`, of any type, are the weights of the model. max_length: in ids.
    """

    module: tf.Module
    model: Seq2Seq
    vocabulary: Vocabulary
    max_length: int

    def search(self, decoding: DecodingSettings) -> Any:
        """Return the signature of a search."""
        return self._signature(decoding, self._search(decoding), lambda ids, scores: {"ids": ids, "scores": scores})

    def best(self, decoding: DecodingSettings) -> Any:
        """Return the signature of the best reply as text."""
        search = self._search(decoding)
        texts = tf.constant(self.vocabulary.bytes_of_tokens())

        def best_of(ids: tf.Tensor, uniform: tf.Tensor | None) -> Pair:
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

        return self._signature(decoding, best_of, as_text)

    def _search(self, decoding: DecodingSettings) -> Compute:
        """Return the function (ids, uniform) -> ids and scores of all hypotheses of each question."""
        automaton = reply_automaton(decoding, self.vocabulary, self.max_length)
        return lambda ids, uniform: search_graph(self.model, decoding, automaton, sequences_in_graph(ids), uniform)

    def _signature(self, decoding: DecodingSettings, compute: Compute, named: Callable[..., Any]) -> Any:
        """Return a signature. named: from the two results, ids and scores, to the results by name."""

        def signature(ids: tf.Tensor, **numbers: tf.Tensor) -> dict[str, tf.Tensor]:
            ids = ids[:, : self.max_length]
            uniform = numbers.get("uniform")
            with with_weights(self.model, self._weights()):
                if not decoding.compares_samples and not decoding.rerank:
                    return named(*compute(ids, uniform))

                def of_question(row: tf.Tensor) -> Pair:
                    question = ids[row : row + 1]  # [1, time]; not static, since the search changes the number of rows
                    of_row = None if uniform is None else uniform[row : row + 1]
                    replies, scores = compute(question[:, : tf.math.count_nonzero(question)], of_row)
                    return replies[0], scores[0]

                # Candidates of a question are a batch, of which only unfinished ones are computed, and `--rerank` needs
                # much memory.
                return named(*tf.map_fn(of_question, tf.range(tf.shape(ids)[0]), fn_output_signature=RESULTS))

        specs = {"ids": tf.TensorSpec([None, None], tf.int64, name="ids")}
        if decoding.samples:
            shape = [None, decoding.hypotheses, self.max_length]
            specs["uniform"] = tf.TensorSpec(shape, tf.float32, name="uniform")
        return tf.function(signature, autograph=False).get_concrete_function(**specs)

    def _weights(self) -> list[tf.Tensor]:
        pairs = zip(self.module.values, self.module.scales, strict=True)
        return [value if value.dtype == tf.float32 else tf.cast(value, tf.float32) * scale for value, scale in pairs]

    def _reverse_scores(self, ids: tf.Tensor, replies: tf.Tensor, decoding: DecodingSettings) -> tf.Tensor:
        """Return the scores of `--rerank` before they are weighted, [rows, hypotheses]; see `inference.replier`.

        ids: questions, [rows, time]. replies: [rows, hypotheses, max_length].
        """
        if self.vocabulary.has_marks:
            ids = ids[:, 1:]  # the mark before the question
        rows = tf.shape(replies)[0]
        hypotheses = decoding.hypotheses
        sources = tf.cast(tf.where(replies == EOS, PAD, replies), tf.int64)
        ends = tf.one_hot(tf.math.count_nonzero(ids, axis=1), tf.shape(ids)[1] + 1, EOS, 0, dtype=tf.int64)
        targets = tf.pad(ids, [[0, 0], [0, 1]]) + ends  # [rows, time + 1]
        target_in = tf.concat([tf.fill([rows, 1], tf.constant(ASK, tf.int64)), ids], axis=1)
        target_in = tf.repeat(target_in, hypotheses, axis=0)  # [rows * hypotheses, time + 1]
        sources = tf.reshape(sources, [rows * hypotheses, -1])
        repeated = tf.reshape(tf.repeat(targets, hypotheses, axis=0), [-1])
        scores = log_probabilities(self.model, sequences_in_graph(sources), sequences_in_graph(target_in), repeated)
        lengths = tf.math.count_nonzero(targets, axis=1)[:, None]  # [rows, 1]
        return tf.reshape(scores, [rows, hypotheses]) / length_penalty(lengths, decoding)


def _shared(module: tf.Module, mixture: NgramMixture | None) -> Ngrams | None:
    """Return n-grams whose arrays are variables of the module, so that no signature has a copy of its own."""
    if mixture is None:
        return None
    ngrams = mixture.ngrams
    module.unigrams = tf.Variable(ngrams.unigrams, trainable=False)
    names = [field.name for field in dataclasses.fields(Order)]
    module.orders = [{name: tf.Variable(getattr(x, name), trainable=False) for name in names} for x in ngrams.orders]
    return Ngrams(module.unigrams, [Order(**of_order) for of_order in module.orders])


def _to_ids(module: tf.Module, vocabulary: Vocabulary, asset: Path, max_length: int) -> Any:
    """Return the signature from tokens to ids: those of `Vocabulary.ids`, with marks after that of a question.

    Longer questions are cut to max_length ids.
    """
    if isinstance(vocabulary, PieceVocabulary):
        return _of_pieces(module, vocabulary, max_length)
    module.asset = tf.saved_model.Asset(str(asset))
    lines = tf.lookup.TextFileInitializer(
        module.asset, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module.table = tf.lookup.StaticHashTable(lines, -1)
    first_mark = vocabulary.first_mark
    first_byte = vocabulary.first_byte

    def known(texts: tf.Tensor) -> tf.Tensor:
        """Return the ids of texts, -1 for unknown ones; bytes and marks are no texts."""
        ids = module.table.lookup(texts) + len(SPECIALS)
        return tf.where((ids >= len(SPECIALS)) & (ids < first_mark), ids, -1)

    def spelled(character: tf.Tensor) -> tf.RaggedTensor:
        """characters [n] -> the ids of their bytes, [n, (ids)]."""
        values = tf.strings.bytes_split(character)
        codes = tf.reshape(tf.io.decode_raw(values.values, tf.uint8), [-1])
        return values.with_values(tf.cast(codes, tf.int64) + first_byte)

    def of_texts(texts: tf.Tensor, otherwise: Callable[[tf.Tensor], tf.RaggedTensor]) -> tf.RaggedTensor:
        """texts [n] -> ids [n, (ids)]."""
        ids = known(texts)
        unknown = tf.where(ids < 0)[:, 0]
        alone = tf.RaggedTensor.from_tensor(ids[:, None])
        both = tf.concat([alone, otherwise(tf.gather(texts, unknown))], axis=0)
        number = tf.size(texts, tf.int64)
        spelled_places = number + tf.range(tf.size(unknown, tf.int64))
        return tf.gather(both, tf.tensor_scatter_nd_update(tf.range(number), unknown[:, None], spelled_places))

    def by_character(texts: tf.Tensor) -> tf.RaggedTensor:
        characters = tf.strings.unicode_split(texts, "UTF-8")  # [n, (characters)]
        ids = characters.with_values(of_texts(characters.values, spelled))  # [n, (characters), (ids)]
        return ids.merge_dims(1, 2)

    def signature(tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        of_rows = tf.RaggedTensor.from_tensor(tokens, padding="")  # [rows, (tokens)]
        ids = of_rows.with_values(of_texts(of_rows.values, by_character)).merge_dims(1, 2)
        if vocabulary.has_marks:
            marks = tf.fill([tf.shape(tokens)[0], 1], tf.constant(first_mark, tf.int64))
            ids = tf.concat([tf.RaggedTensor.from_tensor(marks), ids], axis=1)
        return {"ids": ids[:, :max_length].to_tensor(PAD)}  # as chat does before it draws random numbers for them

    spec = tf.TensorSpec([None, None], tf.string, name="tokens")
    return tf.function(signature, autograph=False).get_concrete_function(tokens=spec)


def _of_pieces(module: tf.Module, vocabulary: PieceVocabulary, max_length: int) -> Any:
    """Return the signature from pieces to ids, as `_to_ids`: unknown ones are UNK, and "" is padding."""
    ids = tf.lookup.KeyValueTensorInitializer([*vocabulary.id_of], [*vocabulary.id_of.values()], tf.string, tf.int64)
    module.table = tf.lookup.StaticHashTable(ids, UNK)

    def signature(tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"ids": tf.where(tokens == "", tf.constant(PAD, tf.int64), module.table.lookup(tokens))[:, :max_length]}

    spec = tf.TensorSpec([None, None], tf.string, name="tokens")
    return tf.function(signature, autograph=False).get_concrete_function(tokens=spec)
