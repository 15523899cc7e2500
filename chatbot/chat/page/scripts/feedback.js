// Sends ratings of replies to the server.

import { historyOf } from "./asking.js";
import { textOf, turnsOf } from "./conversation.js";
import { iconButton } from "./elements.js";
import { announce } from "./messages.js";
import { modelNamed } from "./models.js";
import { request, showError } from "./server.js";
import { changed, shown } from "./state.js";
import { conversations, saveConversation } from "./storage.js";
import { t } from "./texts.js";

const pendingRatings = new Set(); // The answers with a pending rating request.

export function ratingButton(turn, rating) {
  const pressed = turn.reply.answer.rating === rating;
  const key = `${rating}-answer-${turn.place}`;
  const rate = () => rateReply(turn, rating);
  return iconButton(rating, t(rating), key, rate, { "aria-pressed": String(pressed) });
}

/** Returns the history of a turn since the last bad reply, because training also learns the replies in the history. */
function historyToLearn({ place, reply }) {
  const before = turnsOf(shown.conversation).slice(0, place);
  const exchanges = Math.floor((modelNamed(reply.answer.model)?.turns ?? 0) / 2);
  const bad = before.findLastIndex((turn) => turn.reply.answer.rating === "bad");
  return exchanges ? historyOf(before.slice(bad + 1)).slice(-2 * exchanges) : [];
}

/** Records a rating, replacing any previous rating. */
async function rateReply(turn, rating) {
  const { conversation } = shown, { question, reply } = turn, { answer } = reply, before = answer.rating;
  if (before === rating || pendingRatings.has(answer)) return;
  const body = {
    model: answer.model, question: question.question, reply: textOf(answer), history: historyToLearn(turn), rating,
  };
  const replaces = before && answer.ratedAt ? { rating: before, time: answer.ratedAt } : null;
  answer.rating = rating;
  pendingRatings.add(answer);
  try {
    const response = await request("chat/ratings", { ...body, replaces });
    answer.ratedAt = (await response.json()).time;
    reply.revision += 1;
    announce(t("rated"));
  } catch (error) {
    if (answer.rating === rating) answer.rating = before; // Choosing another reply resets the rating.
    showError(error);
  }
  pendingRatings.delete(answer);
  if (conversations.has(conversation.id)) saveConversation(conversation); // The user may have deleted the conversation.
  changed(reply);
}
