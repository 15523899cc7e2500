// A conversation: a tree of questions and replies, of which one path is shown.
//
// conversation: {id, title, updated, revision: of title and model, model: its name, nodes, leaf: id of the last reply
//   that is shown, or null}
// node: a question or a reply, {id, parent: id of the reply before the question, or of the question; null at the
//   beginning, revision}. Nodes with one parent are versions. A node comes after its parent.
//   question: {question: text}
//   reply: {answer}
// answer: {model, replies: [{text, score}], chosen, read: the part of the question that the model read; null: all,
//   state: "running", "done", "stopped" or "failed", rating: null, "good" or "bad", ratedAt: its time on the server}
// turn: {place, question, reply}, two nodes of the path

import { isId, isText, oneOf, plainLine, textOrNull } from "./untrusted.js";

const MOST_NODES = 10000;

export function newConversation(model) {
  return { id: newId(), title: "", updated: Date.now(), revision: 0, model, nodes: [], leaf: null };
}

export const newId = () => crypto.getRandomValues(new BigUint64Array(1))[0].toString(16).padStart(16, "0");

/** Adds a version under a parent, or a first question (null). content: the fields of a question or of a reply. */
export function addNode(conversation, parent, content) {
  const node = { id: newId(), parent, revision: 0, ...content };
  conversation.nodes.push(node);
  conversation.leaf = node.id;
  return node;
}

/** Returns the turns that are shown. */
export function turnsOf(conversation) {
  const known = new Map(conversation.nodes.map((node) => [node.id, node]));
  const turns = [];
  for (let reply = known.get(conversation.leaf); reply; reply = known.get(turns.at(-1).question.parent)) {
    turns.push({ question: known.get(reply.parent), reply });
  }
  return turns.reverse().map((turn, place) => ({ place, ...turn }));
}

/** Returns the versions of a question, or of the reply to one, the oldest first. */
export const versionsOf = (conversation, node) => conversation.nodes.filter(({ parent }) => parent === node.parent);

/** Shows a version, and what followed it last. */
export function showVersion(conversation, node) {
  for (let next = node; next; next = conversation.nodes.findLast(({ parent }) => parent === node.id)) node = next;
  conversation.leaf = node.id;
}

export const textOf = (answer) => answer.replies[answer.chosen]?.text ?? "";

/**
 * Returns the nodes without replies that are empty, such as failed ones, if there is another version in their place.
 * butRunning: whether to keep those that are running.
 */
export function withoutEmpty(nodes, { butRunning } = { butRunning: false }) {
  const hasText = (reply) => textOf(reply.answer) !== "";
  const isRunning = (reply) => reply.answer.state === "running";
  const isReplaced = (empty, place) =>
    nodes.some((other, i) => other.parent === empty.parent && other !== empty && (hasText(other) || i > place));
  const isNeeded = (empty, place) =>
    (butRunning && isRunning(empty)) || nodes.some(({ parent }) => parent === empty.id) || !isReplaced(empty, place);
  return nodes.filter((node, place) => node.question !== undefined || hasText(node) || isNeeded(node, place));
}

/** Adds what another tab or a file has of the same conversation. Of a node that both have, the newer revision stays. */
export function merge(conversation, other) {
  if (other.revision > conversation.revision) {
    Object.assign(conversation, { title: other.title, model: other.model, revision: other.revision });
  }
  conversation.updated = Math.max(conversation.updated, other.updated);
  const known = new Map(conversation.nodes.map((node) => [node.id, node]));
  for (const node of other.nodes) {
    const own = known.get(node.id);
    if (!own) conversation.nodes.push(node);
    else if (node.revision > own.revision) Object.assign(own, node);
  }
  conversation.nodes = withoutEmpty(conversation.nodes, { butRunning: true });
  showVersion(conversation, conversation.nodes.find(({ id }) => id === conversation.leaf) ?? conversation.nodes.at(-1));
}

/** Whether a conversation has something that another state of it lacks. */
export function isAhead(conversation, other) {
  const known = new Map(other.nodes.map((node) => [node.id, node.revision]));
  return conversation.revision > other.revision || conversation.nodes.some((n) => n.revision > (known.get(n.id) ?? -1));
}

/** Returns a conversation from any value, or null if it is none. Earlier versions kept lists of models and answers. */
export function conversationFrom(value) {
  if (!isId(value?.id) || !Array.isArray(value.nodes)) return null;
  const model = textOrNull(value.model ?? value.models?.[0]);
  const known = new Map();
  for (const item of value.nodes.slice(0, MOST_NODES)) {
    const node = nodeFrom(item, known);
    if (node) known.set(node.id, node);
  }
  const nodes = withoutEmpty([...known.values()]);
  const last = nodes.findLast((node) => node.answer);
  if (model === null || !last) return null;
  const conversation = {
    id: value.id,
    title: isText(value.title) ? plainLine(value.title) : "",
    updated: Number.isFinite(value.updated) ? value.updated : 0,
    revision: revisionFrom(value),
    model,
    nodes,
    leaf: null,
  };
  showVersion(conversation, nodes.find((node) => node.answer && node.id === value.leaf) ?? last);
  return conversation;
}

const revisionFrom = (value) => (Number.isSafeInteger(value.revision) ? value.revision : 0);

/** known: the nodes before it by their ids. */
function nodeFrom(value, known) {
  if (!isId(value?.id) || known.has(value.id)) return null;
  const parent = known.get(value.parent);
  const node = { id: value.id, parent: parent?.id ?? null, revision: revisionFrom(value) };
  const { question } = value;
  if (isText(question) && (parent?.answer || value.parent === null)) return { ...node, question };
  const answer = parent?.question === undefined ? null : answerFrom(value.answer ?? value.answers?.[0]);
  return answer && { ...node, answer };
}

function answerFrom(value) {
  if (!isText(value?.model) || !Array.isArray(value.replies)) return null;
  const replies = value.replies.slice(0, 100).map((reply) => ({
    text: textOrNull(reply?.text) ?? "",
    score: Number.isFinite(reply?.score) ? reply.score : null,
  }));
  return {
    model: value.model,
    replies,
    chosen: Number.isInteger(value.chosen) && replies[value.chosen] ? value.chosen : 0,
    read: textOrNull(value.read),
    state: oneOf(value.state, ["done", "failed"]) ?? "stopped",
    rating: oneOf(value.rating, ["good", "bad"]),
    ratedAt: textOrNull(value.ratedAt),
  };
}
