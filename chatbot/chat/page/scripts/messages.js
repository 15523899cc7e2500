// Shows messages outside the conversation: to screen readers, above the message field, and in a dialog.

import { byId, element } from "./elements.js";
import { t } from "./texts.js";

/** Makes screen readers announce a text. */
export function announce(text) {
  byId("announcement").textContent = "";
  byId("announcement").textContent = text;
}

/** Shows a message above the message field. action: The [label, function] of an optional button. */
export function notice(text, action = null) {
  const buttons = [];
  for (const [label, act] of [...(action ? [action] : []), [t("dismiss"), () => {}]]) {
    const onclick = () => {
      clearNotice();
      act();
    };
    buttons.push(element("button", { class: "text-button", type: "button", onclick }, label));
  }
  const line = element("p", {}, element("bdi", {}, text));
  byId("notice").replaceChildren(line, element("div", { class: "notice-buttons" }, ...buttons));
}

export function clearNotice() {
  byId("notice").replaceChildren();
}

/** Asks for confirmation, or for text if `value` is specified. Resolves to true or the text; null if cancelled. */
export function confirmed(text, yes, value = null) {
  const dialog = byId("question"), input = byId("question-input");
  byId("question-text").textContent = text;
  byId("question-yes").textContent = yes;
  byId("question-yes").classList.toggle("danger", value === null);
  input.hidden = value === null;
  input.value = value ?? "";
  dialog.returnValue = "";
  dialog.showModal();
  (value === null ? byId("question-no") : input).focus();
  input.select();
  return new Promise((resolve) => {
    const closed = () => {
      if (dialog.open) return; // Ignore a late event of the previous dialog.
      dialog.removeEventListener("close", closed);
      resolve(dialog.returnValue !== "yes" ? null : value === null ? true : input.value.trim());
    };
    dialog.addEventListener("close", closed);
  });
}
