// What the page says beside the conversation: to a screen reader, in a line above the message field, in a dialog.

import { byId, element } from "./elements.js";
import { t } from "./texts.js";

/** Lets a screen reader say a text. */
export function announce(text) {
  byId("announcement").textContent = "";
  byId("announcement").textContent = text;
}

/** Shows one line above the message field. action: [label, function] of a button, or none. */
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

/** Asks before something is deleted, or with a value for another text. Returns true or the text; null after Cancel. */
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
      if (dialog.open) return; // the event of a dialog before this one comes late
      dialog.removeEventListener("close", closed);
      resolve(dialog.returnValue !== "yes" ? null : value === null ? true : input.value.trim());
    };
    dialog.addEventListener("close", closed);
  });
}
