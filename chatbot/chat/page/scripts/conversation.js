// A conversation is a tree of questions and replies. One path from the root to a leaf is shown.
//
// conversation: {id, title, model, revision, updated, nodes, leaf}
//   model: The name of the model. revision: The version of title and model. leaf: The id of the last visible reply.
// node: {id, parent, revision} with either {question: text} or {answer}
//   parent: The id of the question that a reply belongs to, or of the reply before a question; null for a first
//   question. Nodes with the same parent are versions of each other. A node follows its parent in `nodes`.
// answer: {model, replies: [{text, score}], chosen, read, state, rating, ratedAt}
//   chosen: The index of the visible reply. read: The part of the question that the model read; null if not truncated.
//   state: "running", "done", "stopped" or "failed". rating: null, "good" or "bad". ratedAt: The server's timestamp.
// turn: {place, question, reply}, where question and reply are consecutive nodes of the visible path

import { isId, isText, oneOf, textOrNull, toPlainLine } from "./untrusted.js";

const MAX_NODES = 10000;

export function newConversation(model) {
  return { id: newId(), title: "", updated: Date.now(), revision: 0, model, nodes: [], leaf: null };
}

export const newId = () => crypto.getRandomValues(new BigUint64Array(1))[0].toString(16).padStart(16, "0");

/** Adds a node. parent: The id of the parent; null for a first question. content: {question} or {answer}. */
export function addNode(conversation, parent, content) {
  const node = { id: newId(), parent, revision: 0, ...content };
  conversation.nodes.push(node);
  conversation.leaf = node.id;
  return node;
}

/** Returns the turns of the visible path. */
export function turnsOf(conversation) {
  const known = new Map(conversation.nodes.map((node) => [node.id, node]));
  const turns = [];
  for (let reply = known.get(conversation.leaf); reply; reply = known.get(turns.at(-1).question.parent)) {
    turns.push({ question: known.get(reply.parent), reply });
  }
  return turns.reverse().map((turn, place) => ({ place, ...turn }));
}

/** Returns the versions of a question or a reply, oldest first. */
export const versionsOf = (conversation, node) => conversation.nodes.filter(({ parent }) => parent === node.parent);

/** Shows a version and its newest continuation. */
export function showVersion(conversation, node) {
  for (let next = node; next; next = conversation.nodes.findLast(({ parent }) => parent === node.id)) node = next;
  conversation.leaf = node.id;
}

export const textOf = (answer) => answer.replies[answer.chosen]?.text ?? "";

/**
 * Returns the nodes, except empty replies that have other versions, such as failed replies.
 * butRunning: Whether to include empty replies that are still being generated.
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

/** Merges a conversation with another copy, from a tab or a file. The newer revision of each node wins. */
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

/** Returns whether a conversation contains changes that another copy lacks. */
export function isAhead(conversation, other) {
  const known = new Map(other.nodes.map((node) => [node.id, node.revision]));
  return conversation.revision > other.revision || conversation.nodes.some((n) => n.revision > (known.get(n.id) ?? -1));
}

/** Parses a conversation; returns null if invalid. Old versions of the page stored lists of models and answers. */
export function parseConversation(value) {
  if (!isId(value?.id) || !Array.isArray(value.nodes)) return null;
  const model = textOrNull(value.model ?? value.models?.[0]);
  const known = new Map();
  for (const item of value.nodes.slice(0, MAX_NODES)) {
    const node = parseNode(item, known);
    if (node) known.set(node.id, node);
  }
  const nodes = withoutEmpty([...known.values()]);
  const last = nodes.findLast((node) => node.answer);
  if (model === null || !last) return null;
  const conversation = {
    id: value.id,
    title: isText(value.title) ? toPlainLine(value.title) : "",
    updated: Number.isFinite(value.updated) ? value.updated : 0,
    revision: parseRevision(value),
    model,
    nodes,
    leaf: null,
  };
  showVersion(conversation, nodes.find((node) => node.answer && node.id === value.leaf) ?? last);
  return conversation;
}

const parseRevision = (value) => (Number.isSafeInteger(value.revision) ? value.revision : 0);

/** Parses a node. known: Maps ids to the preceding nodes. */
function parseNode(value, known) {
  if (!isId(value?.id) || known.has(value.id)) return null;
  const parent = known.get(value.parent);
  const node = { id: value.id, parent: parent?.id ?? null, revision: parseRevision(value) };
  const { question } = value;
  if (isText(question) && (parent?.answer || value.parent === null)) return { ...node, question };
  const answer = parent?.question === undefined ? null : parseAnswer(value.answer ?? value.answers?.[0]);
  return answer && { ...node, answer };
}

function parseAnswer(value) {
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
