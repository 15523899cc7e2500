// The key of a server that demands one: the dialog that asks for it, and links that bring it.

import { byId } from "./elements.js";
import { clearNotice } from "./messages.js";
import { keepKey, rememberedKey, rememberKey, storedKey } from "./storage.js";
import { t } from "./texts.js";
import { isKey } from "./untrusted.js";

let load = async () => null;

/** Opens the dialog, or says in it that the server refused the key. */
export function askForKey() {
  if (!byId("key-dialog").open) {
    byId("new-key").value = "";
    byId("remember-key").checked = rememberedKey() !== "";
    byId("key-dialog").showModal();
  }
  showKeyError(storedKey() ? t("key_wrong") : "");
}

/** Loads the models with the key of this tab. The dialog closes when the server takes it; returns whether it does. */
export async function tryKey() {
  clearNotice();
  const error = await load(), isTaken = error === null || error.key === "error_no_models";
  if (isTaken) byId("key-dialog").close();
  else if (error.key !== "error_key") showKeyError(error.message);
  return isTaken;
}

function showKeyError(text) {
  byId("key-error").textContent = text;
  byId("new-key").focus();
  byId("new-key").select(); // what is typed next replaces it
}

async function readKey() {
  const key = byId("new-key").value.trim();
  if (!isKey(key)) return showKeyError(t("key_invalid"));
  keepKey(key);
  if (await tryKey()) rememberKey(byId("remember-key").checked ? key : "");
}

/** Keeps the key of a link, /#key=KEY, and takes it out of the address. Returns whether there was one. */
function takeKeyOfAddress() {
  if (!location.hash.startsWith("#key=")) return false;
  let key = location.hash.slice("#key=".length);
  history.replaceState(null, "", location.pathname + location.search);
  try {
    key = decodeURIComponent(key);
  } catch {
    // a key with a percent sign that nobody has encoded
  }
  if (isKey(key)) keepKey(key);
  return isKey(key);
}

/** loadModels: loads the models; returns the error, or null. */
export function startKey(loadModels) {
  load = loadModels;
  takeKeyOfAddress();
  addEventListener("hashchange", () => takeKeyOfAddress() && tryKey());
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault(); // the dialog stays open until the server has answered
    readKey();
  });
  byId("key-no").addEventListener("click", () => byId("key-dialog").close());
}
