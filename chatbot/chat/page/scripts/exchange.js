// Conversations as a JSON file.

const FILE_FORMAT = "chatbot-conversations";

function exportConversations() {
  const content = JSON.stringify({ format: FILE_FORMAT, version: 1, conversations: newestFirst() }, null, 1);
  const address = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  element("a", { href: address, download: `${FILE_FORMAT}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Adds the conversations of a file. One that is here already is replaced if the file's is newer. */
async function importConversations(file) {
  let found = [];
  try {
    const content = JSON.parse(await file.text());
    if (content.format === FILE_FORMAT) found = content.conversations.map(conversationFrom).filter(Boolean);
  } catch {
    found = [];
  }
  if (!found.length) return notice(t("not_imported"));
  for (const conversation of found) {
    if (conversation.updated >= (conversations.get(conversation.id)?.updated ?? 0)) saveConversation(conversation);
  }
  showConversations();
  announce(t("imported", { count: found.length }));
}
