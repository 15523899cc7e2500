// What the reader says of replies, for the server's file of ratings.

import { historyOf } from "./asking.js";
import { textOf, turnsOf } from "./conversation.js";
import { iconButton } from "./elements.js";
import { announce } from "./messages.js";
import { modelNamed } from "./models.js";
import { request, showError } from "./server.js";
import { changed, shown } from "./state.js";
import { conversations, saveConversation } from "./storage.js";
import { t } from "./texts.js";

const beingRated = new Set(); // answers whose rating is on its way to the server

export function ratingButton(turn, rating) {
  const pressed = turn.reply.answer.rating === rating;
  const key = `${rating}-answer-${turn.place}`;
  const rate = () => rateReply(turn, rating);
  return iconButton(rating, t(rating), key, rate, { "aria-pressed": String(pressed) });
}

/** Returns what the model read before a turn, after the last bad reply: training learns these replies, too. */
function historyToLearn({ place, reply }) {
  const before = turnsOf(shown.conversation).slice(0, place);
  const exchanges = Math.floor((modelNamed(reply.answer.model)?.turns ?? 0) / 2);
  const bad = before.findLastIndex((turn) => turn.reply.answer.rating === "bad");
  return exchanges ? historyOf(before.slice(bad + 1)).slice(-2 * exchanges) : [];
}

/** Records a rating in place of the one before. */
async function rateReply(turn, rating) {
  const { conversation } = shown, { question, reply } = turn, { answer } = reply, before = answer.rating;
  if (before === rating || beingRated.has(answer)) return;
  const body = {
    model: answer.model, question: question.question, reply: textOf(answer), history: historyToLearn(turn), rating,
  };
  const replaces = before && answer.ratedAt ? { rating: before, time: answer.ratedAt } : null;
  answer.rating = rating;
  beingRated.add(answer);
  try {
    const response = await request("chat/ratings", { ...body, replaces });
    answer.ratedAt = (await response.json()).time;
    reply.revision += 1;
    announce(t("rated"));
  } catch (error) {
    if (answer.rating === rating) answer.rating = before; // unless another of the replies was chosen
    showError(error);
  }
  beingRated.delete(answer);
  if (conversations.has(conversation.id)) saveConversation(conversation); // it may have been deleted
  changed(reply);
}
