// What the browser keeps: conversations and settings in localStorage, the key of the API in sessionStorage.
//
// conversation: {id, title, updated, models: [name] or two, turns}
// turn: {question, answers: one for each model, vote: null, "first", "second" or "equal",
//   votedAt: the time of the vote on the server}
// answer: {model, replies: [{text, score}], chosen, state: "running", "done", "stopped" or "failed", rating,
//   ratedAt: the time of the rating on the server}

const PREFIX = "chatbot.";
const ITEM = `${PREFIX}conversation.`;
const LONGEST_TEXT = 100000;
const MOST_TURNS = 5000;

const conversations = new Map();

function stored(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function store(key, value) {
  try {
    localStorage.setItem(PREFIX + key, JSON.stringify(value));
  } catch {
    notice(t("error_storage"));
  }
}

function storedKey() {
  try {
    return sessionStorage.getItem(`${PREFIX}key`) ?? "";
  } catch {
    return keyWithoutStorage;
  }
}

let keyWithoutStorage = "";

function storeKey(key) {
  keyWithoutStorage = key;
  try {
    sessionStorage.setItem(`${PREFIX}key`, key);
  } catch {
    // the key is kept until the page is loaded again
  }
}

function loadConversations() {
  conversations.clear();
  try {
    for (const key of Object.keys(localStorage).filter((name) => name.startsWith(ITEM))) {
      const conversation = conversationFrom(stored(key.slice(PREFIX.length), null));
      if (conversation) conversations.set(conversation.id, conversation);
    }
  } catch {
    // a browser without storage has no conversations
  }
}

function saveConversation(conversation) {
  conversations.set(conversation.id, conversation);
  store(`conversation.${conversation.id}`, conversation);
}

function removeConversation(id) {
  conversations.delete(id);
  try {
    localStorage.removeItem(ITEM + id);
  } catch {
    // without storage there is nothing to remove
  }
}

function newId() {
  const numbers = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(numbers, (number) => number.toString(16).padStart(2, "0")).join("");
}

const newConversation = (models) => ({ id: newId(), title: "", updated: Date.now(), models, turns: [] });

const newestFirst = () => [...conversations.values()].sort((a, b) => b.updated - a.updated);

// What was stored by another version of the page, or comes from a file, has any form: only what is known is taken.

/** Returns a text without control characters and without those that change the direction of what stands beside it. */
const plainLine = (text) => text.replace(/[\p{Cc}\u2028\u2029\u202a-\u202e\u2066-\u2069\s]+/gu, " ").trim();

const isText = (value) => typeof value === "string" && value.length <= LONGEST_TEXT;
const oneOf = (value, allowed) => (allowed.includes(value) ? value : null);

/** Returns a conversation from any value, or null if it is none. */
function conversationFrom(value) {
  if (!value || !/^[0-9a-f]{16}$/.test(value.id)) return null;
  if (!Array.isArray(value.turns) || !Array.isArray(value.models)) return null;
  const models = value.models.filter(isText).slice(0, 2);
  const turns = value.turns.slice(0, MOST_TURNS).map((turn) => turnFrom(turn, models.length));
  if (!models.length || turns.includes(null)) return null;
  const updated = Number.isFinite(value.updated) ? value.updated : 0;
  return { id: value.id, title: isText(value.title) ? plainLine(value.title) : "", updated, models, turns };
}

function turnFrom(value, count) {
  if (!value || !isText(value.question) || !Array.isArray(value.answers)) return null;
  if (value.answers.length !== count) return null;
  const answers = value.answers.map(answerFrom);
  if (answers.includes(null)) return null;
  const vote = oneOf(value.vote, ["first", "second", "equal"]);
  return { question: value.question, answers, vote, votedAt: isText(value.votedAt) ? value.votedAt : null };
}

function answerFrom(value) {
  if (!value || !isText(value.model) || !Array.isArray(value.replies)) return null;
  const replies = value.replies.slice(0, 100).map((reply) => ({
    text: isText(reply?.text) ? reply.text : "",
    score: Number.isFinite(reply?.score) ? reply.score : null,
  }));
  return {
    model: value.model,
    replies,
    chosen: Number.isInteger(value.chosen) && replies[value.chosen] ? value.chosen : 0,
    state: oneOf(value.state, ["done", "failed"]) ?? "stopped",
    rating: oneOf(value.rating, ["good", "bad"]),
    ratedAt: isText(value.ratedAt) ? value.ratedAt : null,
  };
}
