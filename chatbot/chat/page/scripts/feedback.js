// What the reader says of replies, for the server's file of ratings.

const beingRated = new Set(); // answers and turns whose rating is on its way to the server

function ratingButton(turn, answer, side, rating) {
  const pressed = answer.rating === rating;
  const rate = () => rateAnswer(turn, answer, side, rating);
  const key = `${rating}-${answerId(turn, side)}`;
  return iconButton(rating, t(rating), key, rate, { "aria-pressed": String(pressed) });
}

/** Returns the turns that the model read before a turn, after the last bad reply: training learns these replies, too. */
function historyToLearn(turns, turn, side) {
  const model = models.find(({ id }) => id === turn.answers[side].model);
  const exchanges = Math.floor((model?.turns ?? 0) / 2);
  const bad = turns.slice(0, turns.indexOf(turn)).findLastIndex((old) => old.answers[side]?.rating === "bad");
  return exchanges ? historyOf(turns.slice(bad + 1), turn, side).slice(-2 * exchanges) : [];
}

/** Records a rating of a reply; it replaces another one of the same reply. */
async function rateAnswer(turn, answer, side, rating) {
  if (answer.rating === rating || beingRated.has(answer)) return;
  const conversation = current;
  const history = historyToLearn(conversation.turns, turn, side);
  const before = answer.rating;
  const replaces = before && answer.ratedAt ? { rating: before, time: answer.ratedAt } : null;
  const body = { model: answer.model, question: turn.question, reply: textOf(answer), history, rating, replaces };
  beingRated.add(answer);
  answer.rating = rating;
  const { failed, recorded } = await sent("/chat/ratings", body);
  if (failed) answer.rating = before;
  else answer.ratedAt = recorded.time;
  beingRated.delete(answer);
  finish(conversation, turn, failed, t("rated"));
}

function voteElement(turn) {
  const names = turn.answers.map((answer) => answer.model);
  const options = [["first", names[0]], ["equal", t("better_equal")], ["second", names[1]]];
  const buttons = options.map(([vote, label]) => {
    const attributes = {
      class: "vote-button",
      type: "button",
      "data-key": `${vote}-${placeOf(turn)}`,
      "aria-pressed": String(turn.vote === vote),
      onclick: () => voteFor(turn, vote),
    };
    return element("button", attributes, element("bdi", {}, label));
  });
  const question = element("span", {}, t("better_which"));
  return element("div", { class: "vote", role: "group", "aria-label": t("better_which") }, question, ...buttons);
}

/** Records which reply is better; it replaces what was said of the same replies before. */
async function voteFor(turn, better) {
  if (turn.vote === better || beingRated.has(turn)) return;
  const conversation = current;
  const before = turn.vote;
  const body = {
    question: turn.question,
    replies: turn.answers.map(textOf),
    histories: turn.answers.map((_, side) => historyToLearn(conversation.turns, turn, side)),
    models: turn.answers.map((answer) => answer.model),
    better,
    replaces: before && turn.votedAt ? { better: before, time: turn.votedAt } : null,
  };
  beingRated.add(turn);
  turn.vote = better;
  const { failed, recorded } = await sent("/chat/comparisons", body);
  if (failed && turn.vote === better) turn.vote = before; // unless the models replied again
  else turn.votedAt = recorded.time;
  beingRated.delete(turn);
  finish(conversation, turn, failed, t("rated"));
}

/** Returns what the server recorded, or the error in `failed`. */
async function sent(path, body) {
  try {
    const response = await request(path, body);
    return { failed: null, recorded: await response.json() };
  } catch (failed) {
    return { failed };
  }
}

function finish(conversation, turn, failed, done) {
  saveConversation(conversation);
  if (conversation === current) showTurn(turn);
  if (failed) showError(failed, null);
  else announce(done);
}
