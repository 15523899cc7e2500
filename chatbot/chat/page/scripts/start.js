// Sets up the page and its keyboard shortcuts.

import { isRunning, stopReply } from "./asking.js";
import {
  cancelEditing, editLast, fitMessage, focusMessage, retryLast, sendMessage, showLength, showRunning,
} from "./composer.js";
import { newConversation } from "./conversation.js";
import { byId, element, setIcon } from "./elements.js";
import { exportConversations, importConversations } from "./exchange.js";
import { chooseModel, showModel } from "./header.js";
import { startKey } from "./key.js";
import { loadModels } from "./models.js";
import { openSettings, startSettings } from "./settings.js";
import {
  beginConversation, deleteAll, lastModel, menuIsOpen, replaceRemoved, showConversations, showMenu,
} from "./sidebar.js";
import { changed, shown } from "./state.js";
import { applyStoredChange, conversations, loadConversations } from "./storage.js";
import { t } from "./texts.js";
import { showReply, showTurns } from "./turns.js";

const CARDS_SECONDS = 60; // The interval between checks for newer checkpoints.

// On Apple systems, the Option key types characters such as ß, so shortcuts use Control+Option, like HTML access keys.
const OPTION_TYPES = /^(Mac|iP)/.test(navigator.platform);

// The shortcuts use key codes, because characters depend on the keyboard layout.
const ALT_KEYS = { KeyN: beginConversation, KeyR: retryLast, KeyS: openSettings, KeyK: openShortcuts };

function openShortcuts() {
  byId("shortcuts").showModal();
}

/** Returns whether a shortcut's modifiers are pressed. AltGr, which types characters, is Control+Alt on Windows. */
function isShortcut(event) {
  if (!event.altKey || event.metaKey || event.isComposing) return false;
  return OPTION_TYPES ? event.ctrlKey : !event.ctrlKey && !event.getModifierState("AltGraph");
}

/** Sends on Enter, except during IME composition. Safari ends the composition before the event with key code 229. */
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
    if (menuIsOpen()) showMenu(false);
    else if (isRunning(shown.conversation)) stopReply(shown.conversation);
    else cancelEditing();
  }
  const action = isShortcut(event) ? ALT_KEYS[event.code] : undefined;
  if (action) {
    event.preventDefault();
    action();
  }
}

function listen() {
  const clicks = {
    new: beginConversation,
    export: exportConversations,
    import: () => byId("import-file").click(),
    "delete-all": deleteAll,
    "shortcuts-button": openShortcuts,
    "menu-open": () => showMenu(true),
    "menu-close": () => showMenu(false),
    backdrop: () => showMenu(false),
    stop: () => stopReply(shown.conversation),
    "cancel-editing": cancelEditing,
    "question-no": () => byId("question").close(""),
  };
  for (const [id, action] of Object.entries(clicks)) byId(id).addEventListener("click", action);
  byId("model").addEventListener("change", ({ target }) => chooseModel(target.value));
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
  document.addEventListener("visibilitychange", refreshModels);
  setInterval(refreshModels, 1000 * CARDS_SECONDS);
  addEventListener("storage", ({ key, newValue }) => {
    if (key === null) conversations.clear(); // All storage was cleared.
    else applyStoredChange(key, newValue);
    replaceRemoved();
  });
}

function refreshModels() {
  if (document.visibilityState === "visible") loadModels({ quiet: true });
}

function draw({ detail: reply }) {
  if (reply) return showReply(reply);
  showConversations();
  showModel();
  showTurns();
  showRunning();
  showLength();
  byId("heading").textContent = shown.conversation.title || t("new_conversation");
}

function start() {
  for (const button of document.querySelectorAll("button[data-icon]")) setIcon(button, button.dataset.icon);
  for (const key of OPTION_TYPES ? document.querySelectorAll("kbd.alt") : []) {
    key.replaceWith(element("kbd", {}, "Control"), element("kbd", {}, "Option"));
  }
  document.addEventListener("changed", draw);
  startSettings();
  startKey(loadModels);
  loadConversations();
  listen();
  shown.conversation = newConversation(lastModel());
  changed();
  loadModels();
  focusMessage();
}

start();
