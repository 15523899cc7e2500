// The sidebar with the list of conversations.

import { isRunning, stopReply } from "./asking.js";
import { endEditing, focusMessage } from "./composer.js";
import { newConversation } from "./conversation.js";
import { byId, element, iconButton, keepFocus } from "./elements.js";
import { clearNotice, confirmed } from "./messages.js";
import { changed, shown } from "./state.js";
import { conversations, newestFirst, removeConversation, saveConversation, stored } from "./storage.js";
import { formatted, t } from "./texts.js";
import { textOrNull, toPlainLine } from "./untrusted.js";

export function showConversations() {
  const listed = newestFirst();
  byId("no-conversations").hidden = listed.length > 0;
  byId("export").disabled = byId("delete-all").disabled = !listed.length;
  keepFocus(() => byId("conversations").replaceChildren(...listed.map(conversationElement)));
}

function conversationElement(conversation) {
  const title = conversation.title || t("new_conversation"), isOpen = conversation.id === shown.conversation.id;
  const open = element(
    "button",
    {
      class: "conversation-open",
      type: "button",
      "aria-current": isOpen ? "true" : null,
      "data-key": `open-${conversation.id}`,
      title,
      onclick: () => openConversation(conversation),
    },
    element("bdi", {}, title),
  );
  const button = (name, label, action) =>
    iconButton(name, t(label, { title }), `${label}-${conversation.id}`, () => action(conversation));
  const busy = element("span", { class: "busy", role: "img", "aria-label": t("generating"), title: t("generating") });
  const mark = isRunning(conversation) && !isOpen ? busy : null;
  const rename = button("edit", "rename_this", renameConversation);
  const discard = button("delete", "delete_this", deleteConversation);
  return element("li", { class: "conversation" }, open, mark, rename, discard);
}

/** Shows another conversation. Running replies of the previous conversation continue. */
function openConversation(conversation) {
  clearNotice();
  endEditing();
  shown.conversation = conversation;
  showMenu(false);
  changed();
  byId("scroll").scrollTop = conversation.nodes.length ? byId("scroll").scrollHeight : 0;
  focusMessage();
}

/** Starts a new conversation, which is only stored after its first turn. */
export const beginConversation = () => openConversation(newConversation(shown.conversation.model || lastModel()));

/** Returns the most recently chosen model, or "". */
export const lastModel = () => textOrNull(stored("model", "")) ?? "";

async function renameConversation(conversation) {
  const title = await confirmed(t("rename_label"), t("rename"), conversation.title);
  if (!title) return;
  conversation.title = toPlainLine(title);
  conversation.revision += 1;
  saveConversation(conversation);
  changed();
}

async function deleteConversation(conversation) {
  if (!(await confirmed(t("delete_one", { title: conversation.title || t("new_conversation") }), t("delete")))) return;
  remove([conversation.id]);
  byId("new").focus();
}

export async function deleteAll() {
  const { size } = conversations;
  const text = t(size === 1 ? "delete_only" : "delete_everything", { count: formatted(size) });
  if (!(await confirmed(text, t("delete_all")))) return;
  remove([...conversations.keys()]);
}

function remove(ids) {
  for (const id of ids) {
    stopReply({ id });
    removeConversation(id);
  }
  replaceRemoved();
}

/** Starts a new conversation if the visible one was deleted in this or another tab. */
export function replaceRemoved() {
  const { conversation } = shown;
  if (!conversation.nodes.length || conversations.has(conversation.id)) return changed();
  stopReply(conversation);
  beginConversation();
}

export const menuIsOpen = () => !byId("backdrop").hidden;

export function showMenu(open) {
  if (menuIsOpen() === open) return;
  byId("backdrop").hidden = !open;
  byId("menu-open").setAttribute("aria-expanded", String(open));
  byId(open ? "menu-close" : "menu-open").focus();
}
