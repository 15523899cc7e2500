// The turns of the conversation on the page.

import { answerQuestion, isRunning } from "./asking.js";
import { attentionOf, toggleAttention } from "./attention.js";
import { edit, isEdited } from "./composer.js";
import { showVersion, textOf, turnsOf, versionsOf } from "./conversation.js";
import { byId, element, iconButton, isAtEnd, keepFocus, scrollToEnd } from "./elements.js";
import { ratingButton, voteElement } from "./feedback.js";
import { announce, notice } from "./messages.js";
import { nameOf } from "./models.js";
import { changed, shown } from "./state.js";
import { saveConversation } from "./storage.js";
import { formatted, t } from "./texts.js";

const DRAWN = 200; // the last turns of a long conversation that are shown

/** Shows the whole conversation. */
export function showTurns() {
  const turns = turnsOf(shown.conversation);
  const follows = turns.length > 0 && isAtEnd(); // what an empty conversation shows is read from its beginning
  const drawn = turns.slice(-DRAWN).map((turn) => turnElement(turn, turns[turn.place - 1]));
  keepFocus(() => byId("turns").replaceChildren(...drawn));
  if (follows) scrollToEnd();
}

/** Shows a reply that has changed. While it arrives, only its text is replaced. */
export function showReply(reply) {
  const turns = turnsOf(shown.conversation), turn = turns.find((other) => other.reply === reply);
  const old = turn && byId(`turn-${turn.place}`);
  if (!old) return;
  const follows = isAtEnd(), texts = old.querySelectorAll(".reply");
  const replies = reply.answers.flatMap((answer) => answer.replies);
  const arrives = reply.answers.some(({ state }) => state === "running");
  if (arrives && texts.length === replies.length && !old.querySelector(".dots")) {
    replies.forEach(({ text }, i) => texts[i].textContent === text || (texts[i].textContent = text));
  } else {
    keepFocus(() => old.replaceWith(turnElement(turn, turns[turn.place - 1])));
  }
  if (follows) scrollToEnd();
}

function turnElement(turn, before) {
  const { place, reply } = turn, compared = reply.answers.length > 1;
  const drawn = reply.answers.map((answer, side) => {
    const named = compared || before?.reply.answers[0].model !== answer.model;
    return answerElement(turn, answer, side, named);
  });
  const answers = element("div", { class: compared ? "answers compared" : "answers" }, ...drawn);
  const votable = compared && shown.ratingsAreCollected && reply.answers.every(isRatable);
  const vote = votable ? voteElement(turn) : null;
  return element("li", { class: "turn", id: `turn-${place}` }, questionElement(turn), answers, vote);
}

const isRatable = (answer) => answer.state !== "running" && textOf(answer) !== "";

function questionElement({ place, question }) {
  const bubble = element("div", { class: isEdited(question) ? "bubble edited" : "bubble" });
  bubble.append(element("div", { class: "bubble-text text", dir: "auto" }, question.question));
  const change = iconButton("edit", t("edit"), `edit-${place}`, () => edit(question));
  const versions = versionsElement(question, `question-${place}`);
  const actions = element("div", { class: "actions" }, versions, isRunning(shown.conversation) ? null : change);
  return element("div", { class: "question" }, element("h3", { class: "visually-hidden" }, t("you")), bubble, actions);
}

/** The control by which the reader goes from one version of a question or of its reply to another. */
function versionsElement(node, key) {
  const versions = versionsOf(shown.conversation, node), number = versions.indexOf(node) + 1;
  if (versions.length < 2) return null;
  const show = (version) => {
    if (!version) return;
    showVersion(shown.conversation, version);
    saveConversation(shown.conversation);
    changed();
    announce(t("version_of", { number, count: versions.length }));
  };
  const step = (name, version) =>
    iconButton(name, t(name), `${name}-${key}`, () => show(version), { "aria-disabled": String(!version) });
  const place = element("span", {}, `${formatted(number)}/${formatted(versions.length)}`);
  const attributes = { class: "versions", role: "group", "aria-label": t("versions") };
  return element("div", attributes, step("previous", versions[number - 2]), place, step("next", versions[number]));
}

function answerElement(turn, answer, side, named) {
  const id = `answer-${turn.place}-${side}`, isComplete = answer.state !== "running";
  return element(
    "article",
    { class: "answer", id, "aria-busy": String(!isComplete) },
    element("h3", { class: named ? "model-name" : "visually-hidden" }, element("bdi", {}, nameOf(answer.model))),
    answer.replies.length > 1 ? choiceElement(turn, answer, side) : replyElement(answer),
    stateElement(answer),
    isComplete ? actionsElement(turn, answer, side, id) : null,
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
function choiceElement({ place, reply }, answer, side) {
  const name = `choice-${place}-${side}`;
  const rows = answer.replies.map((choice, number) => {
    const choose = () => {
      Object.assign(answer, { chosen: number, rating: null, ratedAt: null });
      reply.vote = null;
      reply.revision += 1;
      attentionOf.delete(answer);
      saveConversation(shown.conversation);
      changed(reply);
    };
    const checked = number === answer.chosen, disabled = answer.state === "running";
    const attributes = { type: "radio", name, checked, disabled, onchange: choose, "data-key": `${name}-${number}` };
    const score = choice.score === null ? null : element("span", { class: "score muted" }, scoreOf(choice));
    const text = element("span", { class: "text reply", dir: "auto" }, choice.text);
    return element("label", { class: "choice-row" }, element("input", attributes), text, score);
  });
  const legend = t(answer.replies.some(({ score }) => score !== null) ? "replies_scored" : "replies");
  return element("fieldset", { class: "choices" }, element("legend", {}, legend), ...rows);
}

/** Returns the mean log-probability of a token, in nats. */
const scoreOf = ({ score }) => formatted(score, 2).replace("-", "\u2212");

function stateElement(answer) {
  if (answer.state === "failed") return element("p", { class: "state failed" }, t("failed"));
  if (answer.state === "stopped") return element("p", { class: "state muted" }, t("stopped"));
  if (answer.same) return element("p", { class: "state muted" }, t("same_reply"));
  if (answer.state === "done" && !textOf(answer)) return element("p", { class: "state muted" }, t("no_reply"));
  if (answer.read) return element("p", { class: "state muted", dir: "auto" }, t("was_cut", { read: answer.read }));
  return null;
}

function actionsElement(turn, answer, side, id) {
  const { place, question, reply } = turn, { conversation } = shown;
  const buttons = [side === 0 ? versionsElement(reply, `reply-${place}`) : null];
  if (textOf(answer)) {
    buttons.push(iconButton("copy", t("copy"), `copy-${id}`, () => copyText(textOf(answer))));
    if (shown.ratingsAreCollected) buttons.push(ratingButton(turn, side, "good"), ratingButton(turn, side, "bad"));
    const expanded = { "aria-expanded": String(attentionOf.has(answer)) };
    buttons.push(iconButton("why", t("why"), `why-${id}`, () => toggleAttention(turn, side), expanded));
  }
  if (!isRunning(conversation)) {
    const label = t(answer.state === "failed" ? "try_again" : "retry");
    buttons.push(iconButton("retry", label, `retry-${id}`, () => answerQuestion(conversation, question)));
  }
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
