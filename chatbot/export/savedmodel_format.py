"""Export to a SavedModel, which TensorFlow answers from without this package.

Signatures, in which `rows` and `time` are any sizes:

    ids     tokens [rows, time] string, "" beyond a row's last -> ids [rows, time'] int64, 0 beyond it
    greedy  ids -> ids [rows, 1, max_length] int32, scores [rows, 1]
    beam    ids -> ids [rows, beams, max_length], scores [rows, beams], the best first
    sample  ids, uniform [rows, candidates, max_length] -> ids [rows, candidates, max_length], scores [rows, candidates]
    reply   ids, and uniform if the search samples -> text [rows] string, score [rows]: the best reply

uniform: random numbers in [0, 1). Scores are log-probabilities in nats, as the decoding settings change them. `reply`
uses the search that chat.py uses by default, or that of the flags at the export.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from chatbot.config.attempts import VOCABULARY
from chatbot.config.decoding import SAMPLED, TOKENS, DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.corpus.ngrams import Ngrams, Order
from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import ASK, EOS, PAD, SPECIALS, UNK, Vocabulary
from chatbot.decoding.hypotheses import length_penalty
from chatbot.export.model import Stored, plain_model, sequences_in_graph, with_weights
from chatbot.flags import fields_of
from chatbot.inference.replier import check_decoding, for_attempt, reply_automaton
from chatbot.inference.responder import ReverseScorer, found
from chatbot.model.saved import Trained
from chatbot.model.seq2seq import Seq2Seq

# Of the signature `beam`, if the search of `reply` is another one.
BEAMS = 5


def write_savedmodel(
    folder: Path, trained: Trained, ngrams: Ngrams | None, weights: Sequence[Stored], decoding: DecodingSettings
) -> None:
    """Write the SavedModel of an attempt.

    weights: in the order of the model's trainable variables. decoding: the search of `reply`. Raises UserError for
    decoding settings that the attempt does not admit.
    """
    settings, vocabulary = trained.settings.model, trained.vocabulary
    decoding = for_attempt(decoding, trained.settings)
    check_decoding(decoding, vocabulary, settings)
    module = tf.Module()
    model = _with_stored_weights(module, plain_model(trained, _shared(module, ngrams)), weights)
    asset = folder / "assets" / VOCABULARY
    asset.parent.mkdir()
    asset.write_bytes(vocabulary.content())
    signatures = {
        "ids": _to_ids(module, vocabulary, asset, settings.max_length),
        "greedy": model.search(settings, _greedy(decoding), vocabulary),
        "beam": model.search(settings, _beam(decoding), vocabulary),
        "sample": model.search(settings, _sample(decoding), vocabulary),
        "reply": model.best(settings, decoding, vocabulary),
    }
    module.functions = signatures
    tf.saved_model.save(module, str(folder), signatures)


def _common(decoding: DecodingSettings) -> dict[str, Any]:
    """Return the settings that change the tokens of a reply, whatever the search."""
    names = [name for name, field in fields_of(DecodingSettings).items() if field.metadata["group"] == TOKENS]
    return {name: getattr(decoding, name) for name in (*names, "length_penalty")}


def _greedy(decoding: DecodingSettings) -> DecodingSettings:
    return DecodingSettings(beam_size=1, **_common(decoding))


def _beam(decoding: DecodingSettings) -> DecodingSettings:
    if decoding.beams > 1:
        return dataclasses.replace(decoding, rerank=None)
    return DecodingSettings(beam_size=BEAMS, **_common(decoding))


def _sample(decoding: DecodingSettings) -> DecodingSettings:
    if decoding.samples:
        return dataclasses.replace(decoding, rerank=None)
    return DecodingSettings(**{**_common(decoding), "top_p": SAMPLED["top_p"]})


class _StoredModel:
    """A model that computes with variables of a module, of any type, converted to float32."""

    def __init__(self, model: Seq2Seq, stored: Callable[[], list[tf.Tensor]]) -> None:
        self._model, self._stored = model, stored

    def search(self, settings: ModelSettings, decoding: DecodingSettings, vocabulary: Vocabulary) -> Any:
        """Return the signature of a search."""
        search = self._search(settings, decoding, vocabulary)

        def signature(ids: tf.Tensor, **uniform: tf.Tensor) -> dict[str, tf.Tensor]:
            with with_weights(self._model, self._stored()):
                replies, scores = _by_question(search, decoding, settings, (tf.int32, tf.float32))(ids, **uniform)
            return {"ids": replies, "scores": scores}

        return tf.function(signature, autograph=False).get_concrete_function(**_specs(settings, decoding))

    def best(self, settings: ModelSettings, decoding: DecodingSettings, vocabulary: Vocabulary) -> Any:
        """Return the signature of the best reply as text."""
        search = self._search(settings, decoding, vocabulary)
        texts = tf.constant(_bytes_of_tokens(vocabulary))
        reverse = ReverseScorer(self._model) if decoding.rerank else None

        def best_of(ids: tf.Tensor, uniform: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
            replies, scores = search(ids, uniform)
            if decoding.compares_samples:
                scores /= length_penalty(tf.math.count_nonzero(replies, axis=-1), decoding)
            if reverse is not None:
                scores += _reverse_scores(self._model, reverse, ids, replies, decoding, vocabulary)
            best = tf.argmax(scores, axis=-1)  # [rows]
            return tf.gather(replies, best, batch_dims=1), tf.gather(scores, best, batch_dims=1)

        def signature(ids: tf.Tensor, **uniform: tf.Tensor) -> dict[str, tf.Tensor]:
            with with_weights(self._model, self._stored()):
                best, score = _by_question(best_of, decoding, settings, (tf.int32, tf.float32))(ids, **uniform)
            text = tf.strings.reduce_join(tf.gather(texts, best), axis=-1)
            return {"text": tf.strings.strip(tf.strings.regex_replace(text, SPACE, " ")), "score": score}

        return tf.function(signature, autograph=False).get_concrete_function(**_specs(settings, decoding))

    def _search(self, settings: ModelSettings, decoding: DecodingSettings, vocabulary: Vocabulary) -> Any:
        """Return the function (ids, uniform) -> ids and scores of all hypotheses of each question."""
        automaton = reply_automaton(decoding, vocabulary, settings.max_length)
        return lambda ids, uniform: found(self._model, decoding, automaton, sequences_in_graph(ids), uniform)


def _by_question(function: Any, decoding: DecodingSettings, settings: ModelSettings, types: tuple[Any, ...]) -> Any:
    """Return the function (ids, uniform) -> results that computes questions one by one where a batch is no use.

    Candidates of a question are a batch, of which only unfinished ones are computed, and `--rerank` needs much memory.

    function: from ids [rows, time] and uniform to two results, [rows, ...] each. types: of the results.
    """

    def of_all(ids: tf.Tensor, uniform: tf.Tensor | None = None) -> tuple[tf.Tensor, ...]:
        ids = ids[:, : settings.max_length]
        if not decoding.compares_samples and not decoding.rerank:
            return function(ids, uniform)

        def of_question(row: tf.Tensor) -> tuple[tf.Tensor, ...]:
            question = ids[row : row + 1]  # [1, time]; not static, since the search changes the number of rows
            length = tf.math.count_nonzero(question)
            numbers = None if uniform is None else uniform[row : row + 1]
            return tuple(result[0] for result in function(question[:, :length], numbers))

        return tf.map_fn(of_question, tf.range(tf.shape(ids)[0]), fn_output_signature=types)

    return of_all


def _with_stored_weights(module: tf.Module, model: Seq2Seq, weights: Sequence[Stored]) -> _StoredModel:
    """Return the model with weights that the module keeps in the type in which they are stored."""
    module.values = [tf.Variable(x.values, trainable=False) for x in weights]
    module.scales = [tf.Variable(x.factors, trainable=False) for x in weights]

    def stored() -> list[tf.Tensor]:
        pairs = zip(module.values, module.scales, strict=True)
        return [value if value.dtype == tf.float32 else tf.cast(value, tf.float32) * scale for value, scale in pairs]

    return _StoredModel(model, stored)


def _shared(module: tf.Module, ngrams: Ngrams | None) -> Ngrams | None:
    """Return n-grams whose arrays are variables of the module, so that no signature has a copy of its own."""
    if ngrams is None:
        return None
    module.unigrams = tf.Variable(ngrams.unigrams, trainable=False)
    names = [field.name for field in dataclasses.fields(Order)]
    module.orders = [{name: tf.Variable(getattr(x, name), trainable=False) for name in names} for x in ngrams.orders]
    return Ngrams(module.unigrams, [Order(**of_order) for of_order in module.orders])


def _specs(settings: ModelSettings, decoding: DecodingSettings) -> dict[str, tf.TensorSpec]:
    specs = {"ids": tf.TensorSpec([None, None], tf.int64, name="ids")}
    if decoding.samples:
        shape = [None, decoding.hypotheses, settings.max_length]
        specs["uniform"] = tf.TensorSpec(shape, tf.float32, name="uniform")
    return specs


def _reverse_scores(
    model: Seq2Seq,
    reverse: ReverseScorer,
    ids: tf.Tensor,
    replies: tf.Tensor,
    decoding: DecodingSettings,
    vocabulary: Vocabulary,
) -> tf.Tensor:
    """Return what `--rerank` adds to the scores, [rows, hypotheses]; see `chatbot.inference.replier`.

    ids: questions, [rows, time]. replies: [rows, hypotheses, max_length].
    """
    if vocabulary.has_marks:
        ids = ids[:, 1:]  # the mark before the question
    rows, hypotheses = tf.shape(replies)[0], decoding.hypotheses
    sources = tf.cast(tf.where(replies == EOS, PAD, replies), tf.int64)
    ends = tf.one_hot(tf.math.count_nonzero(ids, axis=1), tf.shape(ids)[1] + 1, EOS, 0, dtype=tf.int64)
    targets = tf.pad(ids, [[0, 0], [0, 1]]) + ends  # [rows, time + 1]
    target_in = tf.concat([tf.fill([rows, 1], tf.constant(ASK, tf.int64)), ids], axis=1)
    target_in = tf.repeat(target_in, hypotheses, axis=0)  # [rows * hypotheses, time + 1]
    sources = tf.reshape(sources, [rows * hypotheses, -1])
    repeated = tf.reshape(tf.repeat(targets, hypotheses, axis=0), [-1])
    scores = reverse.score(sequences_in_graph(sources), sequences_in_graph(target_in), repeated)
    lengths = tf.math.count_nonzero(targets, axis=1)[:, None]  # [rows, 1]
    scores = tf.reshape(scores, [rows, hypotheses]) / length_penalty(lengths, decoding)
    return (decoding.rerank or 0.0) * scores


def _bytes_of_tokens(vocabulary: Vocabulary) -> list[bytes]:
    """Return the text of each id; special tokens and marks have none, and bytes are themselves."""
    texts = [b""] * len(SPECIALS)
    texts += [token.encode() for token in vocabulary.tokens[len(SPECIALS) : vocabulary.first_mark]]
    texts += [b""] * (vocabulary.first_byte - vocabulary.first_mark)
    return texts + [bytes([i]) for i in range(len(vocabulary) - vocabulary.first_byte)]


def _to_ids(module: tf.Module, vocabulary: Vocabulary, asset: Path, max_length: int) -> Any:
    """Return the signature from tokens to ids: those of `Vocabulary.ids`, with marks after that of a question.

    Longer questions are cut to max_length ids.
    """
    module.asset = tf.saved_model.Asset(str(asset))
    lines = tf.lookup.TextFileInitializer(
        module.asset, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
    )
    module.table = tf.lookup.StaticHashTable(lines, -1)
    first_mark, first_byte = vocabulary.first_mark, vocabulary.first_byte

    def known(texts: tf.Tensor) -> tf.Tensor:
        """Return the ids of texts, -1 for unknown ones; bytes and marks are no texts."""
        ids = module.table.lookup(texts) + len(SPECIALS)
        return tf.where((ids >= len(SPECIALS)) & (ids < first_mark), ids, -1)

    def spelled(character: tf.Tensor) -> tf.RaggedTensor:
        """characters [n] -> the ids of their bytes, or UNK without bytes, [n, (ids)]."""
        if not vocabulary.has_bytes:
            return tf.RaggedTensor.from_tensor(tf.fill([tf.shape(character)[0], 1], tf.constant(UNK, tf.int64)))
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
