// Stores conversations and settings in localStorage, and the API key in sessionStorage. If the user chooses to remember
// the key, it is also stored in localStorage.
//
// Each conversation is a separate item. Other tabs may change an item, so each tab merges its copy with the stored item
// before writing. Tabs that write concurrently receive storage events, and a tab with additional changes writes again.

import { isAhead, merge, parseConversation, withoutEmpty } from "./conversation.js";
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

/** Returns the browser's storage object, or an empty, read-only substitute if storage is disabled. */
function storageOf(name) {
  try {
    window[name].getItem(""); // Reading an item can also throw.
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

let keyWithoutStorage = ""; // Lost when the page is reloaded.

/** Returns the key of this tab, the remembered key, or "" if there is neither. */
export function storedKey() {
  const key = session.getItem(`${PREFIX}key`) ?? keyWithoutStorage;
  return isKey(key) ? key : rememberedKey();
}

export function rememberedKey() {
  const key = stored("key", "");
  return isKey(key) ? key : "";
}

/** Remembers a key on this device. An empty string removes the remembered key. */
export function rememberKey(key) {
  if (key !== rememberedKey()) store("key", key);
}

/** Stores a key until the tab is closed. */
export function storeKey(key) {
  try {
    session.setItem(`${PREFIX}key`, key);
  } catch {
    keyWithoutStorage = key;
  }
}

export function loadConversations() {
  const keys = Object.keys(local).filter((name) => name.startsWith(ITEM));
  const found = keys.map((key) => parseConversation(parsed(local.getItem(key))));
  for (const conversation of found.filter(Boolean)) conversations.set(conversation.id, conversation);
}

export function saveConversation(conversation) {
  const there = parseConversation(stored(`conversation.${conversation.id}`, null));
  if (there) merge(conversation, there);
  conversations.set(conversation.id, conversation);
  store(`conversation.${conversation.id}`, { ...conversation, nodes: withoutEmpty(conversation.nodes) });
}

export function removeConversation(id) {
  conversations.delete(id);
  local.removeItem(ITEM + id);
}

/** Applies a change from another tab. A null value means that the item was removed. */
export function applyStoredChange(key, value) {
  if (!key.startsWith(ITEM)) return;
  const id = key.slice(ITEM.length), mine = conversations.get(id), theirs = parseConversation(parsed(value));
  if (value === null) conversations.delete(id);
  else if (theirs && !mine) conversations.set(id, theirs);
  else if (theirs) {
    merge(mine, theirs);
    if (isAhead({ ...mine, nodes: withoutEmpty(mine.nodes) }, theirs)) saveConversation(mine);
  }
}

export const newestFirst = () => [...conversations.values()].sort((a, b) => b.updated - a.updated);
