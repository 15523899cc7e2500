// Shows the origin of a reply, and a table of its attention weights over the words of the question.

import { historyOf } from "./asking.js";
import { textOf, turnsOf } from "./conversation.js";
import { byId, element } from "./elements.js";
import { announce } from "./messages.js";
import { request, showError } from "./server.js";
import { changed, shown } from "./state.js";
import { t } from "./texts.js";

const LEVELS = 10; // The number of cell background colours.

export const attentionOf = new WeakMap(); // Maps answers to their open panels.

export async function toggleAttention({ place, question, reply }) {
  const { answer } = reply;
  if (attentionOf.delete(answer)) return changed(reply);
  const panel = element("div", { class: "attention", role: "region", tabindex: "0", "aria-label": t("why") });
  attentionOf.set(answer, panel);
  changed(reply);
  const history = historyOf(turnsOf(shown.conversation).slice(0, place));
  const body = { model: answer.model, question: question.question, reply: textOf(answer), history };
  try {
    const attention = await (await request("chat/attention", body)).json();
    const { written_to: source, rated_good: isRated } = attention; // `source` is empty for generated and rated replies.
    if (source) panel.append(element("p", {}, t("why_written_to", { question: source })));
    if (isRated) panel.append(element("p", {}, t("why_rated_good")));
    panel.append(element("p", { class: "muted" }, t(attention.weights ? "why_caption" : "why_none")));
    if (attention.weights) panel.append(attentionTable(attention));
    announce(t(attention.weights ? "why" : "why_none"));
  } catch (error) {
    attentionOf.delete(answer);
    changed(reply);
    showError(error);
  }
  const isTall = panel.offsetHeight > byId("scroll").clientHeight - 120;
  panel.scrollIntoView({ block: isTall ? "start" : "nearest" });
}

/** Creates the table. attention: {question: words, reply: words, weights: one row per word of the reply}. */
function attentionTable({ question, reply, weights }) {
  const head = element("tr", {}, element("td"), ...question.map((word) => wordHeading(word, "col")));
  const rows = reply.map((word, i) => {
    const label = i === reply.length - 1 ? wordHeading(t("why_end"), "row", "muted") : wordHeading(word, "row");
    return element("tr", {}, label, ...weights[i].map(weightCell));
  });
  return element("table", { "aria-label": t("why") }, element("thead", {}, head), element("tbody", {}, ...rows));
}

const wordHeading = (word, scope, style = null) => element("th", { scope, class: style }, element("bdi", {}, word));

function weightCell(weight) {
  const level = Math.min(LEVELS - 1, Math.floor(weight * LEVELS));
  return element("td", { class: `weight level-${level}` }, String(Math.round(100 * weight)));
}
