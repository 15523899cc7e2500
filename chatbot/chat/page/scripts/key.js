// Obtains the API key, if the server requires one, from a dialog or from a link.

import { byId } from "./elements.js";
import { clearNotice } from "./messages.js";
import { rememberedKey, rememberKey, storedKey, storeKey } from "./storage.js";
import { t } from "./texts.js";
import { isKey } from "./untrusted.js";

let load = async () => null;

/** Opens the dialog. If the dialog is already open, reports that the server rejected the key. */
export function openKeyDialog() {
  if (!byId("key-dialog").open) {
    byId("new-key").value = "";
    byId("remember-key").checked = rememberedKey() !== "";
    byId("key-dialog").showModal();
  }
  showKeyError(storedKey() ? t("key_wrong") : "");
}

/** Loads the models with the key of this tab. If the server accepts the key, closes the dialog and returns true. */
export async function tryKey() {
  clearNotice();
  const error = await load(), isAccepted = error === null || error.key === "error_no_models";
  if (isAccepted) byId("key-dialog").close();
  else if (error.key !== "error_key") showKeyError(error.message);
  return isAccepted;
}

function showKeyError(text) {
  byId("key-error").textContent = text;
  byId("new-key").focus();
  byId("new-key").select(); // The next input replaces the rejected key.
}

async function readKey() {
  const key = byId("new-key").value.trim();
  if (!isKey(key)) return showKeyError(t("key_invalid"));
  storeKey(key);
  if (await tryKey()) rememberKey(byId("remember-key").checked ? key : "");
}

/** Stores the key from a link, /#key=KEY, and removes the key from the address. Returns whether a key was found. */
function readKeyFromAddress() {
  if (!location.hash.startsWith("#key=")) return false;
  let key = location.hash.slice("#key=".length);
  history.replaceState(null, "", location.pathname + location.search);
  try {
    key = decodeURIComponent(key);
  } catch {
    // The key contains an unescaped percent sign.
  }
  if (isKey(key)) storeKey(key);
  return isKey(key);
}

/** Sets up the key dialog. loadModels: Loads the models and returns an error or null. */
export function startKey(loadModels) {
  load = loadModels;
  readKeyFromAddress();
  addEventListener("hashchange", () => readKeyFromAddress() && tryKey());
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault(); // Keep the dialog open until the server responds.
    readKey();
  });
  byId("key-no").addEventListener("click", () => byId("key-dialog").close());
}
