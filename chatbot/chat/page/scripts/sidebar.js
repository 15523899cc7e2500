// The list of conversations.

let current = newConversation([""]);

function showAll() {
  showConversations();
  showModels();
  showTurns();
  setTheme();
  byId("heading").textContent = current.title || t("untitled");
}

function showConversations() {
  const shown = newestFirst();
  byId("no-conversations").hidden = shown.length > 0;
  byId("export").disabled = byId("delete-all").disabled = !shown.length;
  keepFocus(() => byId("conversations").replaceChildren(...shown.map(conversationElement)));
}

function conversationElement(conversation) {
  const title = conversation.title || t("untitled");
  const open = element(
    "button",
    {
      class: "conversation-open",
      type: "button",
      "aria-current": conversation.id === current.id ? "true" : null,
      "data-key": `open-${conversation.id}`,
      title,
      onclick: () => openConversation(conversation),
    },
    element("bdi", {}, title),
  );
  const button = (name, label, action) =>
    iconButton(name, t(label, { title }), `${label}-${conversation.id}`, () => action(conversation));
  const rename = button("edit", "rename_this", renameConversation);
  return element("li", { class: "conversation" }, open, rename, button("delete", "delete_this", deleteConversation));
}

function openConversation(conversation) {
  stopReplies();
  clearNotice();
  setEdited(null);
  current = conversation;
  closeMenu();
  showAll();
  byId("scroll").scrollTop = current.turns.length ? byId("scroll").scrollHeight : 0;
  focusMessage();
}

/** A conversation without turns is not stored. */
function beginConversation(names = null) {
  const last = stored("models", [""]);
  openConversation(newConversation(names ?? current.models.map((name, i) => name || last[i] || "")));
}

async function renameConversation(conversation) {
  const title = await confirmed(t("rename_label"), t("rename"), conversation.title);
  if (!title) return;
  conversation.title = plainLine(title);
  saveConversation(conversation);
  showAll();
}

async function deleteConversation(conversation) {
  if (!(await confirmed(t("delete_one", { title: conversation.title || t("untitled") }), t("delete")))) return;
  removeConversation(conversation.id);
  if (conversation.id === current.id) beginConversation();
  else showConversations();
  byId("new").focus();
}

async function deleteAll() {
  if (!(await confirmed(t("delete_everything", { count: formatted(conversations.size) }), t("delete_all")))) return;
  for (const id of [...conversations.keys()]) removeConversation(id);
  beginConversation();
}

function openMenu() {
  document.body.classList.add("menu-is-open");
  byId("backdrop").hidden = false;
  byId("menu-open").setAttribute("aria-expanded", "true");
  byId("menu-close").focus();
}

function closeMenu() {
  if (!document.body.classList.contains("menu-is-open")) return;
  document.body.classList.remove("menu-is-open");
  byId("backdrop").hidden = true;
  byId("menu-open").setAttribute("aria-expanded", "false");
  byId("menu-open").focus();
}

/** Another tab of the browser has changed a conversation: the one that is shown here stays as it is. */
function takeOver(event) {
  if (event.key !== null && !event.key.startsWith(ITEM)) return;
  loadConversations();
  if (conversations.has(current.id)) conversations.set(current.id, current);
  showConversations();
}
