"""The engine, whose worker threads answer the questions of many clients in batches."""

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence

import numpy as np

from chatbot.config.decoding import DecodingSettings, one_sample
from chatbot.corpus.vocabulary import BOS
from chatbot.decoding.reply_text import MAX_CHARACTERS, Reply, ReplyText, cut_at_stop, filter_by_score
from chatbot.inference.replier import Replier, Source
from chatbot.inference.request import FinishReason, Message, Piece, Question, Receive, Request, TokenLogProb
from chatbot.inference.request_queue import RequestQueue
from chatbot.inference.row_batch import PendingReply, RowBatch, token_log_prob
from chatbot.inference.text_responder import TextResponder
from chatbot.retrieval.judge import PLAUSIBLE_SCORE

# The maximum number of waiting questions per client.
MAX_WAITING = 256
# The number of search threads. Two threads keep all cores busy, because one search uses about half of them.
SEARCH_THREADS = 2
# The maximum number of replies in a batch. A question that asks for more replies gets a batch of its own.
MAX_REPLIES = 128
# Waiting questions join a batch when their number reaches this fraction of the batch size, or after JOIN_INTERVAL
# tokens. They are collected first because encoding several questions takes no longer than encoding one.
JOIN_FRACTION = 0.25
JOIN_INTERVAL = 4
# The maximum total number of characters in the questions that join a batch at the same time. It limits how long the
# other replies wait for the tokenizer, to about 12 ms. A single question can be longer.
MAX_JOIN_CHARACTERS = 8 * MAX_CHARACTERS
# A search waits until there are as many questions as in the previous batch, but at most this fraction of the time that
# the previous batch took. Clients often ask again as soon as they receive a reply, so their questions can be batched.
WAIT_FRACTION = 0.1
# The maximum number of good replies to rotate through when a client repeats a question.
MAX_ALTERNATIVES = 5


class Engine:
    """Answers questions from many threads with one model, batching those that arrive together.

        engine = Engine(responder)
        reply = "".join(piece.text for piece in engine.pieces(Question("你好")))
        request = engine.submit(Question("你好"), receive)  # receive gets pieces, then a Usage or an exception
        request.cancel()  # receive gets nothing more
        engine.close()

    One thread generates the replies that need no search, token by token. New questions can join its batch between two
    tokens. Two other threads run beam searches, rank samples and look up replies.

    A reply does not depend on the other questions in its batch. The first question with a new kind of search takes some
    seconds longer, because TensorFlow traces the graph.

    Args:
        responder: The responder whose model answers the questions. Its decoding settings apply to questions that do
            not specify any.
        most_waiting: The maximum number of waiting questions per client.
    """

    def __init__(self, responder: TextResponder, most_waiting: int = MAX_WAITING) -> None:
        self._decoding = responder.decoding
        self._rows, self._searches = RequestQueue(most_waiting), RequestQueue(most_waiting)
        batch_size = max(1, responder.replier.preferred_batch // SEARCH_THREADS)
        workers: list[StreamWorker | SearchWorker] = [StreamWorker(responder, self._rows)]
        workers += [SearchWorker(responder, self._searches, batch_size) for _ in range(SEARCH_THREADS)]
        self._threads = [
            threading.Thread(target=worker.run, name=f"engine: {worker.name}", daemon=True) for worker in workers
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, question: Question, receive: Receive) -> Request:
        """Add a question to the queue. This method is thread-safe.

        Raises:
            BusyError: Too many questions are waiting, or the engine is closed.
        """
        request = Request(question, receive)
        streams = (question.decoding or self._decoding).streams and not question.n_best
        (self._rows if streams else self._searches).put(request)
        return request

    def pieces(self, question: Question) -> Generator[Piece, None, None]:
        """Submit a question, and return a generator of the pieces of text in its replies.

        Closing the generator early, for example after Ctrl-C, cancels the request.

        Raises:
            BusyError: Too many questions are waiting, or the engine is closed.
            Exception: Raised by the generator if the question could not be answered.
        """
        messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        request = self.submit(question, messages.put)

        def receive_pieces() -> Generator[Piece, None, None]:
            try:
                while isinstance(message := messages.get(), Piece):
                    yield message
                if isinstance(message, Exception):
                    raise message
            finally:
                request.cancel()

        return receive_pieces()

    def warm_up(self, searches: Iterable[DecodingSettings | None] = (None,)) -> None:
        """Answer a short question with each search, so TensorFlow traces the graphs before clients ask questions.

        If an answer fails, this method closes the engine and raises the error.
        """
        try:
            for decoding in searches:
                for _ in self.pieces(Question("a", decoding=decoding)):
                    pass
        except BaseException:
            self.close()
            raise

    @property
    def waiting(self) -> int:
        """The number of waiting questions."""
        return len(self._rows) + len(self._searches)

    def stop(self) -> None:
        """Reject new questions. The threads end after they answer the waiting ones. This method is thread-safe."""
        for requests in (self._rows, self._searches):
            requests.close()

    def close(self) -> None:
        """Reject new questions, answer the waiting ones and join the threads."""
        self.stop()
        for thread in self._threads:
            thread.join()


class StreamWorker:
    """Generates replies that need no search, by continuous batching: replies can join and leave at any token."""

    name = "rows"

    def __init__(self, responder: TextResponder, waiting: RequestQueue) -> None:
        self._responder = responder
        self._waiting = waiting
        self._max_length = responder.settings.model.max_length
        self.batch = RowBatch(responder.model, self._max_length)
        self._steps = 0  # steps since questions last joined the batch

    def run(self) -> None:
        """Answer questions until the queue is closed and empty."""
        while (requests := self.next_requests()) is not None:
            self.step(requests)

    def next_requests(self) -> list[Request] | None:
        """Return the questions that join the batch now, or None if the queue is closed and no question is left."""
        unfinished = self.batch.unfinished
        self._steps += 1
        if self._steps < JOIN_INTERVAL and len(self._waiting) < JOIN_FRACTION * unfinished:
            return []
        self._steps = 0
        return self._waiting.take(MAX_REPLIES - unfinished, blocks=not unfinished, max_characters=MAX_JOIN_CHARACTERS)

    def step(self, requests: Sequence[Request]) -> None:
        """Start the replies to new questions, then add one token to every unfinished reply."""
        try:
            self.batch.change([replies for request in requests if (replies := self._start(request))])
            if self.batch.unfinished:
                self.batch.advance()
        except Exception as error:  # An error must not end the worker thread.
            for request in [*self.batch.requests, *requests]:
                request.send(error)
            self.batch.clear()

    def _start(self, request: Request) -> list[PendingReply]:
        """Create the replies to a question. Return an empty list if it is already answered or cancelled."""
        try:
            if (source := _encode_question(self._responder, request)) is not None:
                decoding = request.question.decoding or self._responder.decoding
                return self._responder.begin(request, source.ids, decoding)
        except Exception as error:  # An error must not affect the other questions.
            request.send(error)
        return []


def _encode_question(responder: TextResponder, request: Request) -> Source | None:
    """Return the token ids of a question. If a rule has a fixed answer, send that answer and return None.

    Cancelled requests return None, too.
    """
    question = request.question
    if request.is_over:
        return None
    source = responder.source(question.text, question.history)
    if (fixed := responder.fixed_reply(question.text, source.ids, question.decoding)) is None:
        request.read = responder.read_part(question, source)
        return source
    request.unfinished = question.replies
    for number in range(question.replies):
        request.finish_reply(Piece(number, fixed, finish_reason="stop"), 0)
    return None


class SearchWorker:
    """Answers questions by searches that compare several candidate replies.

    Args:
        responder: The responder of the engine.
        waiting: The queue of waiting questions.
        batch_size: The maximum number of questions in a batch.
    """

    name = "searches"

    def __init__(self, responder: TextResponder, waiting: RequestQueue, batch_size: int) -> None:
        self._responder = responder
        self._waiting = waiting
        self._batch_size = batch_size
        self._max_length = responder.settings.model.max_length

    def run(self) -> None:
        """Answer questions until the queue is closed and empty."""
        number = 1
        timeout = 0.0
        while (requests := self._waiting.take(self._batch_size, True, number, timeout)) is not None:
            began = time.monotonic()
            number = len(requests)
            groups = defaultdict(list)
            for request in requests:
                groups[request.question.decoding].append(request)
            for decoding, group in groups.items():
                try:
                    self._answer(group, self._responder.replier_for(decoding))
                except Exception as error:  # An error must not end the worker thread.
                    for request in group:
                        request.send(error)
            timeout = WAIT_FRACTION * (time.monotonic() - began)

    def _answer(self, requests: Sequence[Request], replier: Replier) -> None:
        sources = [(request, _encode_question(self._responder, request)) for request in requests]
        asked = [(request, source) for request, source in sources if source is not None]
        seeds = [request.question.seed for request, _ in asked]
        candidates = replier.candidates(
            [source for _, source in asked],
            [request.question.last_reply for request, _ in asked],
            [replier.decoding.seed if seed is None else seed for seed in seeds],
            is_wanted=lambda: not all(request.is_over for request in requests),
        )
        pending = [self._send_replies(*pair, replies, replier) for pair, replies in zip(asked, candidates, strict=True)]
        unfinished = [replies for replies in pending if replies]
        if unfinished:
            batch = RowBatch(self._responder.model, self._max_length)
            batch.change([replies for replies in unfinished if not replies[0].request.is_over])
            while batch.unfinished:
                batch.advance()

    def _send_replies(
        self, request: Request, source: Source, candidates: Sequence[Reply], replier: Replier
    ) -> list[PendingReply]:
        """Send the best replies that the search found. If there are too few, return replies that must still be sampled.

        With a minimum score, the fallback is sent in place of samples, because samples have no score.
        """
        question = request.question
        responder = self._responder
        decoding = replier.decoding
        stopped = [reply._replace(text=cut_at_stop(reply.text, question.stop)) for reply in candidates]
        min_score = decoding.min_score if question.min_score is None else question.min_score
        fallback = question.fallback or decoding.fallback
        replies = filter_by_score([x for x in stopped if x.text] or stopped, min_score, fallback)
        if question.repeats:
            replies = [pick_alternative(replies, question.repeats)]
        best = replies[: question.n_best or question.replies]
        number = len(best) if question.n_best else question.replies
        request.question_tokens = len(source.ids)
        request.unfinished = number
        samples = list[PendingReply]()
        if replier.generates and min_score is None and len(best) < number:
            samples = responder.begin(request, source.ids, one_sample(decoding))[len(best) :]
        best += [Reply(fallback, best[0].score)] * (number - len(best) - len(samples))
        for number, reply in enumerate(best):
            text = reply.text
            ids = replier.ids_before_stop(reply, (*decoding.stop, *question.stop))
            # Retrieved replies are always complete, even at the maximum length.
            is_cut = len(ids) >= self._max_length and not reply.origin.question
            if question.max_tokens is not None and len(ids) > question.max_tokens:
                beginning = ReplyText(responder.vocabulary, (), [*ids[: question.max_tokens]])
                beginning.read(is_whole=False)
                text = beginning.text
                ids = beginning.ids
                is_cut = True
            tokens = self._token_log_probs(request, source.ids, ids)
            reason: FinishReason = "length" if is_cut else "stop"
            # A fallback of a model that must not generate replies only means that retrieval found none.
            is_retrieved = bool(reply.origin.question) or not replier.generates
            read = responder.read_part(question, source, True) if is_retrieved else request.read
            request.finish_reply(Piece(number, text, tokens, reason, reply.origin, reply.score, read), len(ids))
        return samples

    def _token_log_probs(self, request: Request, source: Sequence[int], ids: Sequence[int]) -> tuple[TokenLogProb, ...]:
        """Return the log-probability of each token of a reply if the question requests them, else an empty tuple."""
        if (top := request.question.top_log_probs) is None:
            return ()
        model = self._responder.model
        tokens = []
        state = model.encode([source])
        for last, token in zip((BOS, *ids), ids, strict=False):
            if request.is_over:
                break
            logits, state = model.step(state, np.array([last]))
            tokens.append(token_log_prob(self._responder.vocabulary, token, logits[0], top))
        return tuple(tokens)


def pick_alternative(replies: Sequence[Reply], repeats: int) -> Reply:
    """Choose one of the best replies. Each repetition of a question gets the next one.

    Args:
        replies: The candidate replies, best first. Implausible ones are ignored unless all are implausible.
        repeats: The number of times the question has been repeated.
    """
    good = [reply for reply in replies if reply.score >= PLAUSIBLE_SCORE] or replies
    return good[repeats % min(len(good), MAX_ALTERNATIVES)]
