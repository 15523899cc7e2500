// The turns of the conversation on the page.

const DRAWN = 200; // the last turns of a long conversation that are shown

/** Shows the whole conversation. */
function showTurns() {
  const turns = current.turns.slice(-DRAWN);
  keepFocus(() => byId("turns").replaceChildren(...turns.map(turnElement)));
  showEmpty();
}

const placeOf = (turn) => current.turns.indexOf(turn);
const isLast = (turn) => turn === current.turns.at(-1);

function turnElement(turn) {
  const place = placeOf(turn);
  const compared = turn.answers.length > 1;
  const drawn = turn.answers.map((answer, side) => answerElement(turn, answer, side));
  const answers = element("div", { class: compared ? "answers compared" : "answers" }, ...drawn);
  const votable = compared && ratingsAreCollected && !running && turn.answers.every((answer) => textOf(answer));
  const vote = votable ? voteElement(turn) : null;
  return element("li", { class: "turn", id: `turn-${place}` }, questionElement(turn), answers, vote);
}

function questionElement(turn) {
  const edit = isLast(turn) && !running ? iconButton("edit", t("edit"), "edit", editLast) : null;
  return element(
    "div",
    { class: "question" },
    element("h3", { class: "visually-hidden" }, t("you")),
    element("div", { class: "bubble" }, element("div", { class: "bubble-text text", dir: "auto" }, turn.question)),
    element("div", { class: "actions" }, edit),
  );
}

/** Draws one turn anew; its buttons depend on its state. */
function showTurn(turn) {
  const old = byId(`turn-${placeOf(turn)}`);
  if (old) keepFocus(() => old.replaceWith(turnElement(turn)));
}

const textOf = (answer) => answer.replies[answer.chosen]?.text ?? "";
const answerId = (turn, side) => `answer-${placeOf(turn)}-${side}`;

function answerElement(turn, answer, side) {
  const several = answer.replies.length > 1;
  const before = current.turns[placeOf(turn) - 1]?.answers;
  const named = turn.answers.length > 1 || before?.[0].model !== answer.model;
  return element(
    "article",
    { class: "answer", id: answerId(turn, side), "aria-busy": String(answer.state === "running") },
    element("h3", { class: named ? "model-name" : "visually-hidden" }, element("bdi", {}, answer.model)),
    several ? choiceElement(turn, answer, side) : replyElement(answer),
    stateElement(answer, turn),
    answer.state === "running" ? null : actionsElement(turn, answer, side),
    attentionOf.get(answer),
  );
}

function replyElement(answer) {
  const text = textOf(answer);
  if (answer.state === "running" && !text) {
    const dots = element("span", { class: "dots", role: "img", "aria-label": t("generating") });
    dots.append(element("i"), element("i"), element("i"));
    return element("div", { class: "text reply" }, dots);
  }
  return element("div", { class: "text reply", dir: "auto" }, text);
}

/** The replies of an n-best list, of which one goes on with the conversation. */
function choiceElement(turn, answer, side) {
  const name = `choice-${placeOf(turn)}-${side}`;
  const rows = answer.replies.map((reply, number) => {
    const choose = () => {
      answer.chosen = number;
      answer.rating = answer.ratedAt = null;
      turn.vote = null;
      attentionOf.delete(answer);
      saveConversation(current);
      showTurn(turn);
    };
    const checked = number === answer.chosen;
    const radio = element("input", { type: "radio", name, checked, onchange: choose, "data-key": `${name}-${number}` });
    if (answer.state === "running") radio.disabled = true;
    const score = reply.score === null ? null : element("span", { class: "score muted" }, scoreOf(reply));
    const text = element("span", { class: "text reply", dir: "auto" }, reply.text);
    return element("label", { class: "choice-row" }, radio, text, score);
  });
  const legend = t(answer.replies.some((reply) => reply.score !== null) ? "replies_scored" : "replies");
  return element("fieldset", { class: "choices" }, element("legend", {}, legend), ...rows);
}

/** Returns the mean log-probability of a token, in nats. */
const scoreOf = (reply) => formatted(reply.score, 2).replace("-", "\u2212");

function stateElement(answer, turn) {
  if (answer.state === "failed") return element("p", { class: "state failed" }, t("failed"));
  if (answer.state === "stopped") return element("p", { class: "state muted" }, t("stopped"));
  if (answer.state === "done" && !textOf(answer)) return element("p", { class: "state muted" }, t("no_reply"));
  if (answer.same && isLast(turn)) return element("p", { class: "state muted" }, t("same_reply"));
  return null;
}

function actionsElement(turn, answer, side) {
  const key = (name) => `${name}-${answerId(turn, side)}`;
  const buttons = [];
  if (textOf(answer)) {
    buttons.push(iconButton("copy", t("copy"), key("copy"), () => copyText(textOf(answer))));
    if (ratingsAreCollected) {
      buttons.push(ratingButton(turn, answer, side, "good"), ratingButton(turn, answer, side, "bad"));
    }
    const explain = () => toggleAttention(turn, answer, side);
    const expanded = { "aria-expanded": String(attentionOf.has(answer)) };
    buttons.push(iconButton("why", t("why"), key("why"), explain, expanded));
  }
  if (isLast(turn) && side === 0 && !running) buttons.push(iconButton("retry", t("retry"), "retry", retryLast));
  return element("div", { class: "actions" }, ...buttons);
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce(t("copied"));
  } catch {
    notice(t("not_copied"));
  }
}

/** Shows what has arrived of a reply, without drawing its turn anew. */
function showPiece(turn, side) {
  const follows = isAtEnd();
  const answer = turn.answers[side];
  const shown = byId(answerId(turn, side));
  if (!shown) return;
  const texts = shown.querySelectorAll(".reply");
  if (texts.length !== answer.replies.length || shown.querySelector(".dots")) showTurn(turn);
  else answer.replies.forEach((reply, number) => showText(texts[number], reply.text));
  if (follows) scrollToEnd();
}

function showText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

function isAtEnd() {
  const scroll = byId("scroll");
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
}

function scrollToEnd() {
  byId("scroll").scrollTop = byId("scroll").scrollHeight;
}
