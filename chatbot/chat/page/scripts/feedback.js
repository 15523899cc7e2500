// What the reader says of replies, for the server's file of ratings.

import { historyOf } from "./asking.js";
import { textOf, turnsOf } from "./conversation.js";
import { element, iconButton } from "./elements.js";
import { announce } from "./messages.js";
import { modelNamed, nameOf } from "./models.js";
import { request, showError } from "./server.js";
import { changed, shown } from "./state.js";
import { conversations, saveConversation } from "./storage.js";
import { t } from "./texts.js";

// path: of the server. field, time: of what is rated, for what is said of it and when. sent: the field of the request.
const RATING = { path: "chat/ratings", field: "rating", time: "ratedAt", sent: "rating" };
const VOTE = { path: "chat/comparisons", field: "vote", time: "votedAt", sent: "better" };

const beingRated = new Set(); // answers and replies whose rating is on its way to the server

export function ratingButton(turn, side, rating) {
  const pressed = turn.reply.answers[side].rating === rating;
  const key = `${rating}-answer-${turn.place}-${side}`;
  const rate = () => rateAnswer(turn, side, rating);
  return iconButton(rating, t(rating), key, rate, { "aria-pressed": String(pressed) });
}

/** Returns what the model read before a turn, after the last bad reply: training learns these replies, too. */
function historyToLearn({ place, reply }, side) {
  const before = turnsOf(shown.conversation).slice(0, place);
  const exchanges = Math.floor((modelNamed(reply.answers[side].model)?.turns ?? 0) / 2);
  const bad = before.findLastIndex((turn) => turn.reply.answers[side].rating === "bad");
  return exchanges ? historyOf(before.slice(bad + 1), side).slice(-2 * exchanges) : [];
}

function rateAnswer(turn, side, rating) {
  const answer = turn.reply.answers[side];
  record(RATING, turn.reply, answer, rating, {
    model: answer.model,
    question: turn.question.question,
    reply: textOf(answer),
    history: historyToLearn(turn, side),
  });
}

export function voteElement(turn) {
  const names = turn.reply.answers.map((answer) => nameOf(answer.model));
  const options = [["first", names[0]], ["equal", t("better_equal")], ["second", names[1]]];
  const buttons = options.map(([vote, label]) => {
    const attributes = {
      class: "vote-button",
      type: "button",
      "data-key": `${vote}-${turn.place}`,
      "aria-pressed": String(turn.reply.vote === vote),
      onclick: () => voteFor(turn, vote),
    };
    return element("button", attributes, element("bdi", {}, label));
  });
  const question = element("span", {}, t("better_which"));
  return element("div", { class: "vote", role: "group", "aria-label": t("better_which") }, question, ...buttons);
}

function voteFor(turn, better) {
  const { answers } = turn.reply;
  record(VOTE, turn.reply, turn.reply, better, {
    question: turn.question.question,
    replies: answers.map(textOf),
    histories: answers.map((_, side) => historyToLearn(turn, side)),
    models: answers.map((answer) => answer.model),
  });
}

/** Records what is said of a reply, or of one of its answers, in place of what was said before. */
async function record({ path, field, time, sent }, reply, rated, value, body) {
  const { conversation } = shown, before = rated[field];
  if (before === value || beingRated.has(rated)) return;
  const replaces = before && rated[time] ? { [sent]: before, time: rated[time] } : null;
  rated[field] = value;
  beingRated.add(rated);
  try {
    const response = await request(path, { ...body, [sent]: value, replaces });
    rated[time] = (await response.json()).time;
    reply.revision += 1;
    announce(t("rated"));
  } catch (error) {
    if (rated[field] === value) rated[field] = before; // unless another of the replies was chosen
    showError(error);
  }
  beingRated.delete(rated);
  if (conversations.has(conversation.id)) saveConversation(conversation); // it may have been deleted
  changed(reply);
}
