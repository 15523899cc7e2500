"""Answers questions of many threads in batches, in threads of its own."""

import math
import queue
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Generator, Iterable, Sequence

import numpy as np

from chatbot.config.decoding import DecodingSettings, one_sample
from chatbot.corpus.vocabulary import BOS
from chatbot.decoding.reply_text import MAX_CHARACTERS, Reply, ReplyText, before_stop, good_enough
from chatbot.inference.replier import Replier
from chatbot.inference.request import FinishReason, Message, Piece, Question, Receive, Request, TokenLogProb
from chatbot.inference.rows import RowBatch, UnfinishedReply, token_log_prob
from chatbot.inference.text_responder import TextResponder
from chatbot.retrieval.judge import LEAST_SCORE

# The number of questions of a client that may wait.
MOST_WAITING = 256
# Threads that search: with half of the cores for each operation, two keep all cores busy.
SEARCH_THREADS = 2
# The largest number of replies in a batch, but for a question that wants more.
REPLIES = 128
# Questions join a batch when they are a quarter of it, or after as many tokens: to encode one costs as much time as to
# encode several.
JOINING_SHARE = 0.25
JOINING_TOKENS = 4
# Characters of the questions that join at once, unless it is one. All replies of the batch wait while these are
# tokenised, for about 12 ms.
JOINING_CHARACTERS = 8 * MAX_CHARACTERS
# The share of a batch's time to wait for as many questions as it had: clients ask again when they have their replies,
# and to begin with the first of them would leave the others for the batch after it.
PATIENCE = 0.1
# Of how many good replies a client gets another one when it repeats a question.
ALTERNATIVES = 5
# All clients together may have this many times as many waiting questions as one client.
SHARES = 4


class BusyError(Exception):
    """As many questions wait as may, or the engine closes."""


class Waiting:
    """Questions that wait. Clients are served in turn, with one question each.

    most: the number of questions of a client that may wait; of all clients together, four times as many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # The questions of each client, the one whose turn is next first.
        self._clients = OrderedDict[str, deque[Request]]()
        self._arrived = threading.Condition()  # or `close` was called
        self._is_closed = False

    def __len__(self) -> int:
        with self._arrived:
            self._drop_cancelled()
            return sum(map(len, self._clients.values()))

    def put(self, request: Request) -> None:
        """Add a question. Raises BusyError if there are too many, or after `close`."""
        client = request.question.client
        with self._arrived:
            everyone = len(self)
            of_client = self._clients.get(client, deque())
            if self._is_closed or everyone >= SHARES * self._most or len(of_client) >= self._most:
                raise BusyError
            of_client.append(request)
            self._clients[client] = of_client
            self._arrived.notify_all()  # one of several threads may wait for more questions than this

    def take(
        self, replies: int, blocks: bool, enough: int = 1, patience: float = 0.0, characters: float = math.inf
    ) -> list[Request] | None:
        """Return the next questions with at most as many replies in all, but at least one if `blocks`.

        blocks: whether to wait for a question. Then None is returned after `close` when none is left. enough, patience:
        wait until there are so many questions, but at most so many seconds. characters: at most as many in all
        questions, unless it is one.
        """
        with self._arrived:
            if enough > 1:
                self._arrived.wait_for(lambda: self._is_closed or len(self) >= enough, patience)
            while not (requests := self._next(replies, blocks, characters)) and blocks:
                if self._is_closed:
                    return None
                self._arrived.wait()
            return requests

    def close(self) -> None:
        """Take no more questions."""
        with self._arrived:
            self._is_closed = True
            self._arrived.notify_all()

    def _next(self, replies: int, at_least_one: bool, characters: float) -> list[Request]:
        """Remove and return the next questions, as `take` bounds them."""
        self._drop_cancelled()
        requests = list[Request]()
        while self._clients:
            client, questions = next(iter(self._clients.items()))
            question = questions[0].question
            if question.replies > replies and (requests or not at_least_one):
                break
            characters -= question.characters
            if requests and characters < 0:
                break
            requests.append(questions.popleft())
            replies -= question.replies
            self._clients.move_to_end(client)
            if not questions:
                del self._clients[client]
        return requests

    def _drop_cancelled(self) -> None:
        for client, questions in [*self._clients.items()]:
            self._clients[client] = deque(request for request in questions if not request.is_over)
            if not self._clients[client]:
                del self._clients[client]


class Engine:
    """Answers the questions of many threads by one model, those that arrive together in batches.

        engine = Engine(responder)
        reply = "".join(piece.text for piece in engine.pieces(Question("你好")))
        request = engine.submit(Question("你好"), receive)  # receive gets pieces, at last a Usage or an exception
        request.cancel()  # when who asked has gone, or a time limit is over; receive gets nothing more
        engine.close()

    One thread generates all replies of one hypothesis token by token: questions join between two tokens. Two others run
    the searches that compare hypotheses or look replies up. The reply to a question does not depend on the other ones.
    The first question of a kind takes seconds longer, since graphs are traced.

    responder: its search is that of questions without settings. most_waiting: of a client, see `Waiting`.
    """

    def __init__(self, responder: TextResponder, most_waiting: int = MOST_WAITING) -> None:
        self._decoding = responder.decoding
        self._rows, self._searches = Waiting(most_waiting), Waiting(most_waiting)
        most = max(1, responder.replier.answered_at_once // SEARCH_THREADS)
        lanes: list[RowLane | SearchLane] = [RowLane(responder, self._rows)]
        lanes += [SearchLane(responder, self._searches, most) for _ in range(SEARCH_THREADS)]
        self._threads = [threading.Thread(target=lane.run, name=f"engine: {lane.name}", daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()

    def submit(self, question: Question, receive: Receive) -> Request:
        """Give a question to the engine, from any thread. Raises BusyError if too many wait, or after `close`."""
        request = Request(question, receive)
        streams = (question.decoding or self._decoding).streams and not question.n_best
        (self._rows if streams else self._searches).put(request)
        return request

    def pieces(self, question: Question) -> Generator[Piece, None, None]:
        """Ask now, and yield the pieces of the replies. Who ends early, such as by Ctrl-C, waits for no more.

        Raises BusyError, and what the engine gives in place of a reply.
        """
        messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        request = self.submit(question, messages.put)

        def found() -> Generator[Piece, None, None]:
            try:
                while isinstance(message := messages.get(), Piece):
                    yield message
                if isinstance(message, Exception):
                    raise message
            finally:
                request.cancel()

        return found()

    def warm_up(self, searches: Iterable[DecodingSettings | None] = (None,)) -> None:
        """Ask a question by each search: the first one of a kind takes seconds longer, since graphs are traced.

        Raises what the engine gives in place of a reply, after it was closed.
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
        """The number of questions that wait."""
        return len(self._rows) + len(self._searches)

    def stop(self) -> None:
        """Take no more questions; the threads end when they have answered the others. Any thread may call this."""
        for waiting in (self._rows, self._searches):
            waiting.close()

    def close(self) -> None:
        """Answer the questions that were submitted, and end the threads."""
        self.stop()
        for thread in self._threads:
            thread.join()


class RowLane:
    """Answers questions with settings of one reply, by continuous batching: replies begin and end at any time."""

    name = "rows"

    def __init__(self, responder: TextResponder, waiting: Waiting) -> None:
        self._responder = responder
        self._waiting = waiting
        self._max_length = responder.settings.model.max_length
        self.batch = RowBatch(responder.model, self._max_length)
        self._tokens = 0  # of a reply, since questions last joined

    def run(self) -> None:
        """Answer questions until `waiting` is closed and none is left."""
        while (requests := self.joining()) is not None:
            self.step(requests)

    def joining(self) -> list[Request] | None:
        """Return the questions that join now. None if there is nothing to do any more."""
        number = self.batch.unfinished
        self._tokens += 1
        if self._tokens < JOINING_TOKENS and len(self._waiting) < JOINING_SHARE * number:
            return []
        self._tokens = 0
        return self._waiting.take(REPLIES - number, blocks=not number, characters=JOINING_CHARACTERS)

    def step(self, requests: Sequence[Request]) -> None:
        """Begin replies to these questions, and add a token to each unfinished reply."""
        try:
            self.batch.change([replies for request in requests if (replies := self._begin(request))])
            if self.batch.unfinished:
                self.batch.advance()
        except Exception as error:  # the next questions are answered
            for request in [*self.batch.requests, *requests]:
                request.give(error)
            self.batch.clear()

    def _begin(self, request: Request) -> list[UnfinishedReply]:
        """Return the replies to a question before their first id; none if it is answered, or nobody waits for it."""
        try:
            if (source := source_of(self._responder, request)) is not None:
                return self._responder.begin(request, source, request.question.decoding or self._responder.decoding)
        except Exception as error:  # of this question: the others go on
            request.give(error)
        return []


def source_of(responder: TextResponder, request: Request) -> list[int] | None:
    """Return the ids of a question; None if nobody waits for it, or it has a fixed reply, which is given."""
    question = request.question
    if request.is_over:
        return None
    source = responder.source(question.text, question.history)
    if (fixed := responder.fixed_reply(question.text, source, question.decoding)) is None:
        request.read = responder.part_read(question, source)
        return source
    request.unfinished = question.replies
    for number in range(question.replies):
        request.give_reply(Piece(number, fixed, finish_reason="stop"), 0)
    return None


class SearchLane:
    """Answers questions by searches that compare replies. most: the number of questions that it searches at once."""

    name = "searches"

    def __init__(self, responder: TextResponder, waiting: Waiting, most: int) -> None:
        self._responder = responder
        self._waiting = waiting
        self._most = most
        self._max_length = responder.settings.model.max_length

    def run(self) -> None:
        """Answer questions until `waiting` is closed and none is left."""
        number = 1
        patience = 0.0
        while (requests := self._waiting.take(self._most, True, number, patience)) is not None:
            began = time.monotonic()
            number = len(requests)
            groups = defaultdict(list)
            for request in requests:
                groups[request.question.decoding].append(request)
            for decoding, of_search in groups.items():
                try:
                    self._answer(of_search, self._responder.replier_of(decoding))
                except Exception as error:  # the next questions are answered
                    for request in of_search:
                        request.give(error)
            patience = PATIENCE * (time.monotonic() - began)

    def _answer(self, requests: Sequence[Request], replier: Replier) -> None:
        sources = [(request, source_of(self._responder, request)) for request in requests]
        asked = [(request, source) for request, source in sources if source is not None]
        seeds = [request.question.seed for request, _ in asked]
        found = replier.candidates(
            [source for _, source in asked],
            [request.question.last_reply for request, _ in asked],
            [replier.decoding.seed if seed is None else seed for seed in seeds],
            is_wanted=lambda: not all(one.is_over for one in requests),
        )
        given = [self._give(*of_one, replies, replier) for of_one, replies in zip(asked, found, strict=True)]
        samples = [others for others in given if others]
        if samples:
            batch = RowBatch(self._responder.model, self._max_length)
            batch.change([others for others in samples if not others[0].request.is_over])
            while batch.unfinished:
                batch.advance()

    def _give(
        self, request: Request, source: Sequence[int], found: Sequence[Reply], replier: Replier
    ) -> list[UnfinishedReply]:
        """Give the best replies, as many as the question wants. Where fewer were found, return samples for the others.

        A sample has no score, so where a least score counts, the others are the fallback.
        """
        question = request.question
        responder = self._responder
        decoding = replier.decoding
        stopped = [reply._replace(text=before_stop(reply.text, question.stop)) for reply in found]
        least = decoding.min_score if question.min_score is None else question.min_score
        fallback = question.fallback or decoding.fallback
        replies = good_enough([x for x in stopped if x.text] or stopped, least, fallback)
        if question.repeats:
            replies = [another_good(replies, question.repeats)]
        best = replies[: question.n_best or question.replies]
        number = len(best) if question.n_best else question.replies
        request.question_tokens = len(source)
        request.unfinished = number
        samples = list[UnfinishedReply]()
        if replier.generates and least is None and len(best) < number:
            samples = responder.begin(request, source, one_sample(decoding))[len(best) :]
        best += [Reply(fallback, best[0].score)] * (number - len(best) - len(samples))
        for number, reply in enumerate(best):
            text = reply.text
            ids = replier.ids_before_stop(reply, (*decoding.stop, *question.stop))
            # A reply that a person wrote is whole, however long it is.
            is_cut = len(ids) >= self._max_length and not reply.origin.question
            if question.max_tokens is not None and len(ids) > question.max_tokens:
                beginning = ReplyText(responder.vocabulary, (), [*ids[: question.max_tokens]])
                beginning.read(is_whole=False)
                text = beginning.text
                ids = beginning.ids
                is_cut = True
            tokens = self._tokens(request, source, ids)
            reason: FinishReason = "length" if is_cut else "stop"
            request.give_reply(Piece(number, text, tokens, reason, reply.origin, reply.score), len(ids))
        return samples

    def _tokens(self, request: Request, source: Sequence[int], ids: Sequence[int]) -> tuple[TokenLogProb, ...]:
        """Return the log-probabilities of a reply that was found, if they are needed."""
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


def another_good(replies: Sequence[Reply], repeats: int) -> Reply:
    """Return another of the best replies each time that a question is repeated, in turn.

    replies: the best first, at least one. Where something speaks for a reply, the others must have that, too.
    """
    good = [reply for reply in replies if reply.score >= LEAST_SCORE] or replies
    return good[repeats % min(len(good), ALTERNATIVES)]
