// Sends questions to the model, and requests alternative replies.

import { addNode, newId, textOf, turnsOf, withoutEmpty } from "./conversation.js";
import { scrollToEnd } from "./elements.js";
import { announce, clearNotice } from "./messages.js";
import { loadModels, modelNamed } from "./models.js";
import { eventsOf, request, showError } from "./server.js";
import { requestSettings, settings } from "./settings.js";
import { changed, shown } from "./state.js";
import { conversations, saveConversation } from "./storage.js";
import { t } from "./texts.js";
import { toPlainLine } from "./untrusted.js";

// The limits on the history in a request. No model reads more.
const MAX_MESSAGES = 40;
const MAX_CHARACTERS = 4000; // per message

const DRAW_MILLISECONDS = 30; // The minimum interval between updates of a streaming reply.
const MORE_SAMPLES = 4; // The number of samples if the model's default search finds no other reply.

const user = newId(); // Distinguishes this tab from other tabs with the same key or address.

const running = new Map(); // Maps conversation ids to the AbortControllers of their requests.

export const isRunning = (conversation) => running.has(conversation.id);
export const stopReply = (conversation) => running.get(conversation.id)?.abort();

/** Returns the messages of turns, alternating between questions and replies. */
export function historyOf(turns) {
  const replied = turns.filter(({ reply }) => textOf(reply.answer));
  const texts = replied.flatMap(({ question, reply }) => [question.question, textOf(reply.answer)]);
  return texts.slice(-MAX_MESSAGES).map((text) => text.slice(0, MAX_CHARACTERS).toWellFormed());
}

/** Asks a question. parent: The id of the previous reply; null for the first question. */
export function ask(conversation, parent, text) {
  conversation.title ||= Array.from(toPlainLine(text)).slice(0, 60).join("");
  return answerQuestion(conversation, addNode(conversation, parent, { question: text }));
}

/** Asks the model for the first or an alternative reply to a question. */
export async function answerQuestion(conversation, question) {
  if (isRunning(conversation)) return;
  const controller = new AbortController(), leaf = conversation.leaf;
  running.set(conversation.id, controller);
  clearNotice();
  const earlier = conversation.nodes.filter(({ parent }) => parent === question.id);
  for (const { answer } of earlier) answer.same = false;
  const node = addNode(conversation, question.id, { answer: newAnswer(conversation.model) });
  conversation.updated = Date.now();
  saveConversation(conversation);
  changed();
  if (conversation === shown.conversation) scrollToEnd();
  await askModel(conversation, node, earlier, controller.signal);
  running.delete(conversation.id);
  node.revision += 1;
  dropIfNotNew(conversation, node, earlier, leaf);
  conversation.updated = Date.now();
  if (conversations.has(conversation.id)) saveConversation(conversation); // The user may have deleted the conversation.
  changed();
  if (conversation === shown.conversation) announce(announcementOf(node.answer));
}

const questionOf = (conversation, node) => conversation.nodes.find(({ id }) => id === node.parent);

function newAnswer(model) {
  return { model, replies: [], chosen: 0, read: null, state: "running", rating: null, ratedAt: null };
}

/** Removes a version that is empty or repeats an earlier version, and shows the previous leaf again. */
function dropIfNotNew(conversation, node, earlier, leaf) {
  if (node.answer.same) {
    conversation.nodes = conversation.nodes.filter((other) => other !== node);
    for (const { answer } of earlier) answer.same = true;
  }
  conversation.nodes = withoutEmpty(conversation.nodes);
  if (!conversation.nodes.some(({ id }) => id === conversation.leaf)) conversation.leaf = leaf;
}

function announcementOf(answer) {
  if (answer.same) return t("same_reply");
  return textOf(answer) || t({ failed: "failed", stopped: "stopped" }[answer.state] ?? "no_reply");
}

/** Requests a reply that differs from all earlier versions. */
async function askModel(conversation, node, earlier, signal) {
  const { answer } = node;
  const before = earlier.map((old) => old.answer).filter(({ model }) => model === answer.model);
  const known = new Set(before.flatMap(({ replies }) => replies.map(({ text }) => text)).filter(Boolean));
  try {
    await generate(conversation, node, known, false, signal);
    if (known.size && !answer.replies.length) await generate(conversation, node, known, true, signal);
    answer.state = "done";
    answer.same = known.size > 0 && !answer.replies.length;
    if (answer.same) answer.replies = structuredClone(before.at(-1).replies);
  } catch (error) {
    answer.state = error.name === "AbortError" ? "stopped" : "failed";
    if (answer.state === "stopped") return;
    const again = [t("try_again"), () => answerQuestion(conversation, questionOf(conversation, node))];
    if (conversation === shown.conversation) showError(error, again);
    if (error.key === "error_model") loadModels();
  }
}

/**
 * Generates replies that are not in `known`. As in the terminal, these are samples or the next best replies of the
 * model's default search. The request asks for additional replies, because the search repeats the known ones.
 */
async function generate(conversation, node, known, varied, signal) {
  const { answer } = node, found = known.size ? [] : answer.replies;
  const before = turnsOf({ ...conversation, leaf: node.id }).slice(0, -1);
  const texts = [...historyOf(before), questionOf(conversation, node).question];
  const messages = texts.map((content, i) => ({ role: i % 2 ? "assistant" : "user", content }));
  const sent = requestSettings(known.size + (varied ? MORE_SAMPLES : 0), varied);
  const body = { model: answer.model, messages, user, stream: true, ...sent };
  let drawn = -DRAW_MILLISECONDS;
  for await (const event of eventsOf(await request("v1/chat/completions", body, signal))) {
    for (const choice of event.choices ?? []) {
      addPiece(found, choice);
      answer.read = choice.chatbot?.read ?? answer.read;
    }
    followCheckpoint(answer.model, event);
    if (known.size || conversation !== shown.conversation || performance.now() < drawn + DRAW_MILLISECONDS) continue;
    changed(node);
    drawn = performance.now();
  }
  const isFirst = ({ text }, place) => found.findIndex((other) => other.text === text) === place;
  const fresh = found.filter((reply, place) => reply.text && !known.has(reply.text) && isFirst(reply, place));
  answer.replies = fresh.length || known.size ? fresh.slice(0, settings.n) : found.slice(0, 1);
}

function addPiece(replies, choice) {
  while (replies.length <= choice.index) replies.push({ text: "", score: null, tokens: 0 });
  const reply = replies[choice.index];
  reply.text += choice.delta?.content ?? "";
  for (const { logprob } of choice.logprobs?.content ?? []) {
    reply.tokens += 1;
    reply.score = (reply.score ?? 0) + (logprob - (reply.score ?? 0)) / reply.tokens; // Update the running mean.
  }
}

/** Reloads the model cards if the reply comes from a newer checkpoint. */
function followCheckpoint(name, event) {
  const step = /-step-(\d+)$/.exec(event.system_fingerprint)?.[1], model = modelNamed(name);
  if (step === undefined || model === undefined || model.step === Number(step)) return;
  model.step = Number(step); // Update the step immediately, because every event of the stream calls this function.
  loadModels({ quiet: true });
}
