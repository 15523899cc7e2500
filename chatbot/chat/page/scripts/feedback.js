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

/** Records a rating of a reply; it replaces another one of the same reply. */
async function rateAnswer(turn, side, rating) {
  const answer = turn.reply.answers[side], before = answer.rating;
  if (before === rating || beingRated.has(answer)) return;
  const body = {
    model: answer.model,
    question: turn.question.question,
    reply: textOf(answer),
    history: historyToLearn(turn, side),
    rating,
    replaces: before && answer.ratedAt ? { rating: before, time: answer.ratedAt } : null,
  };
  answer.rating = rating;
  await record("chat/ratings", body, turn.reply, answer, (time) => {
    if (time !== null) answer.ratedAt = time;
    else answer.rating = before;
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

/** Records which reply is better; it replaces what was said of the same replies before. */
async function voteFor(turn, better) {
  const { reply } = turn, before = reply.vote;
  if (before === better || beingRated.has(reply)) return;
  const body = {
    question: turn.question.question,
    replies: reply.answers.map(textOf),
    histories: reply.answers.map((_, side) => historyToLearn(turn, side)),
    models: reply.answers.map((answer) => answer.model),
    better,
    replaces: before && reply.votedAt ? { better: before, time: reply.votedAt } : null,
  };
  reply.vote = better;
  await record("chat/comparisons", body, reply, reply, (time) => {
    if (time !== null) reply.votedAt = time;
    else if (reply.vote === better) reply.vote = before; // unless another of the replies was chosen
  });
}

/** Sends what is said of a reply. rated: gets no other rating meanwhile. keep: gets the time, null after an error. */
async function record(path, body, reply, rated, keep) {
  const { conversation } = shown;
  beingRated.add(rated);
  try {
    const { time } = await (await request(path, body)).json();
    keep(time);
    reply.revision += 1;
    announce(t("rated"));
  } catch (error) {
    keep(null);
    showError(error);
  }
  beingRated.delete(rated);
  if (conversations.has(conversation.id)) saveConversation(conversation); // it may have been deleted
  changed(reply);
}
