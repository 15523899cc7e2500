// The keyboard, and the start of the page.

const SHORTCUTS = [
  ["Enter", "shortcut_send"],
  ["Shift+Enter", "shortcut_line"],
  ["Esc", "shortcut_stop"],
  ["↑", "shortcut_edit"],
  ["Alt+N", "shortcut_new"],
  ["Alt+R", "shortcut_retry"],
  ["Alt+S", "shortcut_settings"],
  ["Alt+K", "shortcut_help"],
];
// By the place of the key: on some systems Alt changes its character.
const ALT_KEYS = { KeyN: () => beginConversation(), KeyR: retryLast, KeyS: openSettings, KeyK: openShortcuts };

function openShortcuts() {
  const rows = SHORTCUTS.map(([keys, text]) => {
    const names = keys.split("+").map((key) => element("kbd", {}, key));
    return element("div", {}, element("dt", {}, ...names), element("dd", {}, t(text)));
  });
  byId("shortcut-list").replaceChildren(...rows);
  byId("shortcuts").showModal();
}

/** Enter sends, except while an input method composes characters. Safari ends these before the key, whose code is 229. */
function messageKey(event) {
  if (event.isComposing || event.keyCode === 229) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    sendMessage();
  } else if (event.key === "ArrowUp" && !byId("message").value) {
    event.preventDefault();
    editLast();
  }
}

function pageKey(event) {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && !event.isComposing) {
    const stopsMore = running || document.body.classList.contains("menu-is-open");
    stopReplies();
    closeMenu();
    if (!stopsMore) cancelEditing();
  }
  const action = event.altKey && !event.ctrlKey && !event.metaKey ? ALT_KEYS[event.code] : undefined;
  if (action) {
    event.preventDefault();
    action();
  }
}

function listen() {
  const clicks = {
    new: () => beginConversation(),
    export: exportConversations,
    import: () => byId("import-file").click(),
    "delete-all": deleteAll,
    "shortcuts-button": openShortcuts,
    "menu-open": openMenu,
    "menu-close": closeMenu,
    backdrop: closeMenu,
    compare: toggleComparison,
    stop: stopReplies,
    "cancel-editing": cancelEditing,
    "question-no": () => byId("question").close(""),
  };
  for (const [id, action] of Object.entries(clicks)) byId(id).addEventListener("click", action);
  for (const place of [0, 1]) {
    byId(`model-${place}`).addEventListener("change", (event) => chooseModel(place, event.target.value));
  }
  byId("import-file").addEventListener("change", async ({ target }) => {
    if (target.files[0]) await importConversations(target.files[0]);
    target.value = "";
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    sendMessage();
  });
  byId("message").addEventListener("input", fitMessage);
  byId("message").addEventListener("keydown", messageKey);
  document.addEventListener("keydown", pageKey);
  addEventListener("storage", takeOver);
}

function start() {
  for (const button of document.querySelectorAll("button[data-icon]")) setIcon(button, button.dataset.icon);
  loadSettings();
  startSettings();
  setTheme();
  setLanguage(settings.language);
  loadConversations();
  listen();
  const last = stored("models", [""]);
  current = newConversation(Array.isArray(last) && last.every(isText) ? last.slice(0, 1) : [""]);
  showAll();
  loadModels();
  focusMessage();
}

start();
