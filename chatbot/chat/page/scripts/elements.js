// Elements of the page. Data enter as text nodes and attributes only, never as HTML.

const byId = (id) => document.getElementById(id);

/** Returns a new element. An attribute that begins with "on" is a listener; one that is null or false is left out. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Returns the icon of a <symbol> of the page. */
function icon(name) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("class", "icon");
  picture.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#icon-${name}`);
  picture.append(use);
  return picture;
}

function setIcon(button, name) {
  button.querySelector("svg.icon")?.remove();
  button.prepend(icon(name));
}

/** Names a button that has an icon only. */
function setLabel(button, label) {
  button.setAttribute("aria-label", label);
  button.title = label;
}

/** key: of the button among all, by which it gets the focus again after its part of the page was drawn anew. */
function iconButton(name, label, key, onclick, attributes = {}) {
  const button = element("button", { class: "icon-button", type: "button", "data-key": key, onclick, ...attributes });
  setIcon(button, name);
  setLabel(button, label);
  return button;
}

/** Calls `draw`, which replaces elements, and gives the focus to the element that has it by its data-key. */
function keepFocus(draw) {
  const key = document.activeElement?.dataset?.key;
  draw();
  if (!key || document.activeElement?.dataset?.key === key) return;
  [...document.querySelectorAll("[data-key]")].find((candidate) => candidate.dataset.key === key)?.focus();
}

/** Lets a screen reader say a text. */
function announce(text) {
  byId("announcement").textContent = "";
  byId("announcement").textContent = text;
}

/** Shows one line above the message field. action: [label, function] of a button, or none. */
function notice(text, action = null) {
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

function clearNotice() {
  byId("notice").replaceChildren();
}

/** Asks before something is deleted, or with a value for another text. Returns true or the text; null after Cancel. */
function confirmed(text, yes, value = null) {
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
