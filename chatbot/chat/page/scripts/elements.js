// Elements of the page. Data enter as text nodes and attributes only, never as HTML.

export const byId = (id) => document.getElementById(id);

/** Returns a new element. An attribute that begins with "on" is a listener; one that is null or false is left out. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Gives a button the icon of a <symbol> of the page. */
export function setIcon(button, name) {
  button.querySelector("svg.icon")?.remove();
  const icon = byId("icon").content.cloneNode(true);
  icon.querySelector("use").setAttribute("href", `#icon-${name}`);
  button.prepend(icon);
}

/** Names a button that has an icon only. */
export function setLabel(button, label) {
  button.setAttribute("aria-label", label);
  button.title = label;
}

/** key: of the button among all, by which it gets the focus again after its part of the page was drawn anew. */
export function iconButton(name, label, key, onclick, attributes = {}) {
  const button = element("button", { class: "icon-button", type: "button", "data-key": key, onclick, ...attributes });
  setIcon(button, name);
  setLabel(button, label);
  return button;
}

/** Calls `draw`, which replaces elements, and gives the focus to the element that has it by its data-key. */
export function keepFocus(draw) {
  const key = document.activeElement?.dataset?.key;
  draw();
  if (!key || document.activeElement?.dataset?.key === key) return;
  [...document.querySelectorAll("[data-key]")].find((candidate) => candidate.dataset.key === key)?.focus();
}

/** Whether the end of the conversation is in sight, so that what is added to it should be, too. */
export function isAtEnd() {
  const scroll = byId("scroll");
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
}

export function scrollToEnd() {
  byId("scroll").scrollTop = byId("scroll").scrollHeight;
}
