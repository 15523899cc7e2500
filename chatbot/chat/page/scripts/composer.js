// The message field, for new questions and for editing previous questions.

import { answerQuestion, ask, isRunning } from "./asking.js";
import { turnsOf } from "./conversation.js";
import { byId } from "./elements.js";
import { announce } from "./messages.js";
import { loadModels } from "./models.js";
import { changed, shown } from "./state.js";
import { formatted, t } from "./texts.js";

let edited = null; // The question being edited.
let draft = ""; // The text of the message field before editing.

export const isEdited = (question) => question === edited;

export function sendMessage() {
  // `toWellFormed` replaces lone surrogates, which cannot be encoded in UTF-8.
  const { conversation } = shown, text = byId("message").value.trim().toWellFormed();
  if (!text || isTooLong(text) || isRunning(conversation)) return;
  if (!conversation.model) return loadModels();
  const parent = edited ? edited.parent : conversation.leaf;
  if (edited) endEditing();
  else setMessage("");
  ask(conversation, parent, text);
}

/** Sends a suggested question, without changing the text in the message field. */
export function sendQuestion(text) {
  if (!isRunning(shown.conversation)) ask(shown.conversation, shown.conversation.leaf, text.toWellFormed());
  focusMessage();
}

export function edit(question) {
  if (isRunning(shown.conversation)) return;
  if (!edited) draft = byId("message").value;
  edited = question;
  byId("editing").hidden = false;
  setMessage(question.question);
  byId("message").focus();
  changed();
  announce(t("editing"));
}

export function cancelEditing() {
  if (!edited) return;
  endEditing();
  byId("message").focus();
  changed();
}

/** Restores the text that was in the message field before editing. */
export function endEditing() {
  if (!edited) return;
  edited = null;
  byId("editing").hidden = true;
  setMessage(draft);
}

const lastQuestion = () => turnsOf(shown.conversation).at(-1)?.question;

export function editLast() {
  if (lastQuestion()) edit(lastQuestion());
}

export function retryLast() {
  if (lastQuestion()) answerQuestion(shown.conversation, lastQuestion());
}

/** Shows either the send button or the stop button. */
export function showRunning() {
  const focused = [byId("send"), byId("stop")].includes(document.activeElement);
  byId("send").hidden = isRunning(shown.conversation);
  byId("stop").hidden = !isRunning(shown.conversation);
  if (focused) byId(isRunning(shown.conversation) ? "stop" : "message").focus();
}

function setMessage(text) {
  byId("message").value = text;
  fitMessage();
}

/** Adjusts the height of the message field to its text. */
export function fitMessage() {
  const input = byId("message");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  showLength();
}

// The server counts code points, but JavaScript strings count UTF-16 code units.
const isTooLong = (text) => text.length > shown.maxCharacters && [...text].length > shown.maxCharacters;

/** Shows a hint if the message is too long for the server. */
export function showLength() {
  const text = byId("message").value.trim(), isLong = isTooLong(text), hint = byId("hint");
  const values = isLong ? { count: formatted([...text].length), most: formatted(shown.maxCharacters) } : {};
  hint.textContent = t(isLong ? "too_long" : "hint", values);
  if (isLong && !byId("send").disabled) announce(hint.textContent);
  hint.classList.toggle("failed", isLong);
  byId("message").ariaInvalid = String(isLong);
  byId("send").disabled = isLong;
}

/** Focuses the message field, except on phones, where the keyboard would cover half of the page. */
export function focusMessage() {
  if (!matchMedia("(pointer: coarse)").matches) byId("message").focus();
}
