// Renders the turns of the conversation.

import { answerQuestion, isRunning } from "./asking.js";
import { attentionOf, toggleAttention } from "./attention.js";
import { edit, isEdited } from "./composer.js";
import { showVersion, textOf, turnsOf, versionsOf } from "./conversation.js";
import { byId, element, iconButton, isAtEnd, keepFocus, scrollToEnd } from "./elements.js";
import { ratingButton } from "./feedback.js";
import { announce, notice } from "./messages.js";
import { nameOf } from "./models.js";
import { changed, shown } from "./state.js";
import { saveConversation } from "./storage.js";
import { formatted, t } from "./texts.js";

const MAX_DRAWN = 200; // The maximum number of visible turns in a long conversation.

/** Renders the entire conversation. */
export function showTurns() {
  const turns = turnsOf(shown.conversation);
  const follows = turns.length > 0 && isAtEnd(); // Do not scroll an empty conversation.
  const drawn = turns.slice(-MAX_DRAWN).map((turn) => turnElement(turn, turns[turn.place - 1]));
  keepFocus(() => byId("turns").replaceChildren(...drawn));
  if (follows) scrollToEnd();
}

/** Updates a changed reply. While a reply is being streamed, only its text is replaced. */
export function showReply(reply) {
  const turns = turnsOf(shown.conversation), turn = turns.find((other) => other.reply === reply);
  const old = turn && byId(`turn-${turn.place}`);
  if (!old) return;
  const follows = isAtEnd(), texts = old.querySelectorAll(".reply");
  const { replies, state } = reply.answer;
  if (state === "running" && texts.length === replies.length && !old.querySelector(".dots")) {
    replies.forEach(({ text }, i) => texts[i].textContent === text || (texts[i].textContent = text));
  } else {
    keepFocus(() => old.replaceWith(turnElement(turn, turns[turn.place - 1])));
  }
  if (follows) scrollToEnd();
}

function turnElement(turn, before) {
  const named = before?.reply.answer.model !== turn.reply.answer.model;
  return element("li", { class: "turn", id: `turn-${turn.place}` }, questionElement(turn), answerElement(turn, named));
}

function questionElement({ place, question }) {
  const bubble = element("div", { class: isEdited(question) ? "bubble edited" : "bubble" });
  bubble.append(element("div", { class: "bubble-text text", dir: "auto" }, question.question));
  const change = iconButton("edit", t("edit"), `edit-${place}`, () => edit(question));
  const versions = versionsElement(question, `question-${place}`);
  const actions = element("div", { class: "actions" }, versions, isRunning(shown.conversation) ? null : change);
  return element("div", { class: "question" }, element("h3", { class: "visually-hidden" }, t("you")), bubble, actions);
}

/** Creates the control that switches between versions of a question or a reply. */
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

function answerElement(turn, named) {
  const { answer } = turn.reply, isComplete = answer.state !== "running";
  return element(
    "article",
    { class: "answer", id: `answer-${turn.place}`, "aria-busy": String(!isComplete) },
    element("h3", { class: named ? "model-name" : "visually-hidden" }, element("bdi", {}, nameOf(answer.model))),
    answer.replies.length > 1 ? choiceElement(turn) : replyElement(answer),
    stateElement(answer),
    isComplete ? actionsElement(turn) : null,
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

/** Creates the list of the n best replies. The conversation continues with the chosen reply. */
function choiceElement({ place, reply }) {
  const { answer } = reply, name = `choice-${place}`;
  const rows = answer.replies.map((choice, number) => {
    const choose = () => {
      Object.assign(answer, { chosen: number, rating: null, ratedAt: null });
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

/** Formats a mean log-probability per token, in nats. */
const scoreOf = ({ score }) => formatted(score, 2).replace("-", "\u2212");

function stateElement(answer) {
  if (answer.state === "failed") return element("p", { class: "state failed" }, t("failed"));
  if (answer.state === "stopped") return element("p", { class: "state muted" }, t("stopped"));
  if (answer.same) return element("p", { class: "state muted" }, t("same_reply"));
  if (answer.state === "done" && !textOf(answer)) return element("p", { class: "state muted" }, t("no_reply"));
  if (answer.read) return element("p", { class: "state muted", dir: "auto" }, t("was_cut", { read: answer.read }));
  return null;
}

function actionsElement(turn) {
  const { place, question, reply } = turn, { answer } = reply, { conversation } = shown, id = `answer-${place}`;
  const buttons = [versionsElement(reply, `reply-${place}`)];
  if (textOf(answer)) {
    buttons.push(iconButton("copy", t("copy"), `copy-${id}`, () => copyText(textOf(answer))));
    if (shown.ratingsAreCollected) buttons.push(ratingButton(turn, "good"), ratingButton(turn, "bad"));
    const expanded = { "aria-expanded": String(attentionOf.has(answer)) };
    buttons.push(iconButton("why", t("why"), `why-${id}`, () => toggleAttention(turn), expanded));
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
