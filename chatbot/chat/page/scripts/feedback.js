// What the reader says of replies, for the server's file of ratings.

function ratingButton(turn, answer, side, rating) {
  const pressed = answer.rating === rating;
  const rate = () => rateAnswer(turn, answer, side, rating);
  const key = `${rating}-${answerId(turn, side)}`;
  const disabled = !pressed && answer.rating !== null;
  return iconButton(rating, t(rating), key, rate, { "aria-pressed": String(pressed), disabled });
}

/** Returns the turns that the model read before a turn, after the last bad reply: training learns these replies, too. */
function historyToLearn(turns, turn, side) {
  const model = models.find(({ id }) => id === turn.answers[side].model);
  const exchanges = Math.floor((model?.turns ?? 0) / 2);
  const bad = turns.slice(0, turns.indexOf(turn)).findLastIndex((old) => old.answers[side]?.rating === "bad");
  return exchanges ? historyOf(turns.slice(bad + 1), turn, side).slice(-2 * exchanges) : [];
}

/** Each reply is rated once: the server's file has no lines that are taken back. */
async function rateAnswer(turn, answer, side, rating) {
  if (answer.rating) return;
  const conversation = current;
  const history = historyToLearn(conversation.turns, turn, side);
  const body = { model: answer.model, question: turn.question, reply: textOf(answer), history, rating };
  answer.rating = rating;
  const failed = await sent("/chat/ratings", body);
  if (failed) answer.rating = null;
  finish(conversation, turn, failed, t("rated"));
}

function voteElement(turn) {
  const names = turn.answers.map((answer) => answer.model);
  const options = [["first", names[0]], ["equal", t("better_equal")], ["second", names[1]]];
  if (turn.vote) {
    const choice = options.find(([vote]) => vote === turn.vote)[1];
    return element("p", { class: "vote muted" }, element("bdi", {}, t("voted", { choice })));
  }
  const buttons = options.map(([vote, label]) => {
    const key = `${vote}-${placeOf(turn)}`;
    const attributes = { class: "vote-button", type: "button", "data-key": key, onclick: () => voteFor(turn, vote) };
    return element("button", attributes, element("bdi", {}, label));
  });
  const question = element("span", {}, t("better_which"));
  return element("div", { class: "vote", role: "group", "aria-label": t("better_which") }, question, ...buttons);
}

async function voteFor(turn, better) {
  const conversation = current;
  const body = {
    question: turn.question,
    replies: turn.answers.map(textOf),
    histories: turn.answers.map((_, side) => historyToLearn(conversation.turns, turn, side)),
    models: turn.answers.map((answer) => answer.model),
    better,
  };
  turn.vote = better;
  const failed = await sent("/chat/comparisons", body);
  if (failed) turn.vote = null;
  finish(conversation, turn, failed, t("rated"));
}

/** Returns the error of a request, or null. */
async function sent(path, body) {
  try {
    await request(path, body);
    return null;
  } catch (error) {
    return error;
  }
}

function finish(conversation, turn, failed, done) {
  saveConversation(conversation);
  if (conversation === current) showTurn(turn);
  if (failed) showError(failed, null);
  else announce(done);
}
