// Exports and imports conversations as a JSON file.

import { merge, parseConversation } from "./conversation.js";
import { element } from "./elements.js";
import { announce, notice } from "./messages.js";
import { changed } from "./state.js";
import { conversations, newestFirst, saveConversation } from "./storage.js";
import { t } from "./texts.js";

const FILE_FORMAT = "chatbot-conversations";

export function exportConversations() {
  const content = JSON.stringify({ format: FILE_FORMAT, version: 3, conversations: newestFirst() }, null, 1);
  const address = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  element("a", { href: address, download: `${FILE_FORMAT}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Imports the conversations in a file. Conversations that already exist are merged. */
export async function importConversations(file) {
  let found = [];
  try {
    const content = JSON.parse(await file.text());
    if (content.format === FILE_FORMAT) found = content.conversations.map(parseConversation).filter(Boolean);
  } catch {
    found = [];
  }
  if (!found.length) return notice(t("not_imported"));
  for (const conversation of found) {
    const here = conversations.get(conversation.id);
    if (here) merge(here, conversation);
    saveConversation(here ?? conversation);
  }
  changed();
  announce(t(found.length === 1 ? "imported_one" : "imported", { count: found.length }));
}
