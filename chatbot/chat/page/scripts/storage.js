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

export function stored(key, otherwise) {
  try {
    return parsed(localStorage.getItem(PREFIX + key)) ?? otherwise;
  } catch {
    return otherwise; // a browser without storage
  }
}

export function store(key, value) {
  try {
    localStorage.setItem(PREFIX + key, JSON.stringify(value));
  } catch {
    notice(t("error_storage"));
  }
}

let keyWithoutStorage = "";

/** Returns the key of this tab or else the remembered one; "": there is none. */
export function storedKey() {
  let key = keyWithoutStorage;
  try {
    key = sessionStorage.getItem(`${PREFIX}key`);
  } catch {
    // a browser without storage
  }
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
  keyWithoutStorage = key;
  try {
    sessionStorage.setItem(`${PREFIX}key`, key);
  } catch {
    // the key is kept until the page is loaded again
  }
}

export function loadConversations() {
  try {
    const keys = Object.keys(localStorage).filter((name) => name.startsWith(ITEM));
    const found = keys.map((key) => conversationFrom(parsed(localStorage.getItem(key))));
    for (const conversation of found.filter(Boolean)) conversations.set(conversation.id, conversation);
  } catch {
    // a browser without storage has no conversations
  }
}

export function saveConversation(conversation) {
  const there = conversationFrom(stored(`conversation.${conversation.id}`, null));
  if (there) merge(conversation, there);
  conversations.set(conversation.id, conversation);
  store(`conversation.${conversation.id}`, { ...conversation, nodes: withoutEmpty(conversation.nodes) });
}

export function removeConversation(id) {
  conversations.delete(id);
  try {
    localStorage.removeItem(ITEM + id);
  } catch {
    // without storage there is nothing to remove
  }
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
