"""The anti-language model of Li et al. (2016), "A Diversity-Promoting Objective Function": MMI-antiLM."""

import tensorflow as tf

from chatbot.decoding.processor import Prefix, Processor
from chatbot.decoding.step import State, Step


def anti_lm(step: Step, start: State, weight: float, tokens: int) -> Processor:
    """Subtract weight * log U from the log-probabilities of the first `tokens` ids.

    U is the probability of an id given the ids before it, but not the question. Ids that follow any question lose most.

    step, start: a decoder that computes U, and its state before the first id, for each row.
    """

    def apply(log_probs: tf.Tensor, prefix: Prefix, state: State) -> tuple[tf.Tensor, State]:
        def penalised() -> tuple[tf.Tensor, State]:
            logits, after = step(state, prefix.last)
            return log_probs - weight * tf.nn.log_softmax(tf.cast(logits, tf.float32)), after

        return tf.cond(prefix.position < tokens, penalised, lambda: (log_probs, state))

    return Processor(apply, start)
