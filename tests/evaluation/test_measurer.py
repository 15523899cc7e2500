"""The measures of the replies to some pairs: random replies, and the likelihood of questions given replies."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import ASK, EOS, Vocabulary
from chatbot.evaluation.likelihood import Scorer
from chatbot.evaluation.measurer import Measurer
from chatbot.evaluation.samples import Sample
from chatbot.flags import compose
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import Seq2Seq

VOCABULARY = Vocabulary([*"你好吗啊他她\u2581", "你好"])
MODEL = compose(Settings, rnn_size=8, embedding_size=6).model
SAMPLES = [
    Sample(VOCABULARY.ids(tokens), question, answer)
    for tokens, question, answer in (
        (["你好", "吗"], "你好吗", "好"),
        (["他", "\u2581好"], "他 好", "她好"),
        (["啊"], "啊", "啊"),
    )
]


def slow_question_nats(model: Seq2Seq, question: list[int], reply: list[int]) -> float:
    """The negative log-likelihood of a question given a reply, token by token, from the symbol of that direction."""
    state, last, nats = model.encode(model.sequences(np.array([reply]))), ASK, 0.0
    for token in [*question, EOS]:
        logits, state = model.step(state, tf.constant([last]))
        row = logits[0].numpy().astype(np.float64)
        nats += float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[token])
        last = token
    return nats


def test_likelihood_of_questions_given_replies() -> None:
    """One reply is empty, and one has another length than its reference."""
    model = built_model(MODEL, len(VOCABULARY), seed=3)
    for variable in model.trainable_variables:  # larger than an untrained model's, so that the direction matters
        variable.assign(5 * variable)
    replies = ["你好他", "", "啊啊"]
    ids = [VOCABULARY.ids("你好他"), [EOS], VOCABULARY.ids("啊啊")]
    expected = sum(slow_question_nats(model, s.ids, reply) for s, reply in zip(SAMPLES, ids, strict=True))
    measured = Measurer(SAMPLES, VOCABULARY, list, Scorer(model))(replies).questions
    assert measured is not None
    assert measured.nats == pytest.approx(expected, rel=1e-5)
    assert measured.characters == 3 + 2 + 1


def test_random_replies_are_the_references_of_other_questions() -> None:
    samples = [Sample([5], "问", f"答{i}") for i in range(30)]
    measurer = Measurer(samples, VOCABULARY, list, None)
    replies = measurer.random_replies()
    assert sorted(replies) == sorted(measurer.references)
    assert not any(reply == reference for reply, reference in zip(replies, measurer.references, strict=True))
    assert replies == measurer.random_replies()
    assert Measurer(samples[:1], VOCABULARY, list, None).random_replies() == ["答0"]
