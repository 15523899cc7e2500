// What the browser keeps: conversations and settings in localStorage, the key of the API in sessionStorage, and in
// localStorage, too, if the reader wants it.
//
// Each conversation is an item of its own. Another tab may have changed it: whoever writes an item merges it with what
// is there. Tabs that write at once are told of each other's items, and the one that has more writes again.

import { conversationFrom, isAhead, merge, withoutEmpty } from "./conversation.js";
import { notice } from "./messages.js";
import { t } from "./texts.js";
import { isKey } from "./untrusted.js";

const PREFIX = "chatbot.";
const ITEM = `${PREFIX}conversation.`;

export const conversations = new Map();

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Returns a storage of the browser, or where it has none, one that is empty and to which nothing can be written. */
function storageOf(name) {
  try {
    window[name].getItem(""); // may fail, too
    return window[name];
  } catch {
    return { getItem: () => null, removeItem: () => {} };
  }
}

const local = storageOf("localStorage"), session = storageOf("sessionStorage");

export const stored = (key, otherwise) => parsed(local.getItem(PREFIX + key)) ?? otherwise;

export function store(key, value) {
  try {
    local.setItem(PREFIX + key, JSON.stringify(value));
  } catch {
    notice(t("error_storage"));
  }
}

let keyWithoutStorage = ""; // until the page is loaded again

/** Returns the key of this tab or else the remembered one; "": there is none. */
export function storedKey() {
  const key = session.getItem(`${PREFIX}key`) ?? keyWithoutStorage;
  return isKey(key) ? key : rememberedKey();
}

export function rememberedKey() {
  const key = stored("key", "");
  return isKey(key) ? key : "";
}

/** Keeps a key on this device; "": none. */
export function rememberKey(key) {
  if (key !== rememberedKey()) store("key", key);
}

/** Keeps a key until the tab is closed. */
export function keepKey(key) {
  try {
    session.setItem(`${PREFIX}key`, key);
  } catch {
    keyWithoutStorage = key;
  }
}

export function loadConversations() {
  const keys = Object.keys(local).filter((name) => name.startsWith(ITEM));
  const found = keys.map((key) => conversationFrom(parsed(local.getItem(key))));
  for (const conversation of found.filter(Boolean)) conversations.set(conversation.id, conversation);
}

export function saveConversation(conversation) {
  const there = conversationFrom(stored(`conversation.${conversation.id}`, null));
  if (there) merge(conversation, there);
  conversations.set(conversation.id, conversation);
  store(`conversation.${conversation.id}`, { ...conversation, nodes: withoutEmpty(conversation.nodes) });
}

export function removeConversation(id) {
  conversations.delete(id);
  local.removeItem(ITEM + id);
}

/** Takes over an item that another tab of the browser has written, or removed (value: null). */
export function takeOver(key, value) {
  if (!key.startsWith(ITEM)) return;
  const id = key.slice(ITEM.length), mine = conversations.get(id), theirs = conversationFrom(parsed(value));
  if (value === null) conversations.delete(id);
  else if (theirs && !mine) conversations.set(id, theirs);
  else if (theirs) {
    merge(mine, theirs);
    if (isAhead({ ...mine, nodes: withoutEmpty(mine.nodes) }, theirs)) saveConversation(mine);
  }
}

export const newestFirst = () => [...conversations.values()].sort((a, b) => b.updated - a.updated);
