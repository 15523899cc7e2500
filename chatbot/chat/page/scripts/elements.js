// Helpers for elements of the page. Data is only inserted as text nodes and attributes, never as HTML.

export const byId = (id) => document.getElementById(id);

/** Creates an element. Attributes starting with "on" become event listeners; null and false attributes are skipped. */
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

/** Sets the icon of a button. name: The id of a <symbol> in the page, without its prefix. */
export function setIcon(button, name) {
  button.querySelector("svg.icon")?.remove();
  const icon = byId("icon").content.cloneNode(true);
  icon.querySelector("use").setAttribute("href", `#icon-${name}`);
  button.prepend(icon);
}

/** Sets the accessible name and the tooltip of an icon button. */
export function setLabel(button, label) {
  button.setAttribute("aria-label", label);
  button.title = label;
}

/** Creates an icon button. key: A unique name by which `keepFocus` finds the button after a redraw. */
export function iconButton(name, label, key, onclick, attributes = {}) {
  const button = element("button", { class: "icon-button", type: "button", "data-key": key, onclick, ...attributes });
  setIcon(button, name);
  setLabel(button, label);
  return button;
}

/** Calls `draw`, which replaces elements, and then restores the focus to the element with the same data-key. */
export function keepFocus(draw) {
  const key = document.activeElement?.dataset?.key;
  draw();
  if (!key || document.activeElement?.dataset?.key === key) return;
  [...document.querySelectorAll("[data-key]")].find((candidate) => candidate.dataset.key === key)?.focus();
}

/** Returns whether the end of the conversation is visible and should remain visible when content is added. */
export function isAtEnd() {
  const scroll = byId("scroll");
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
}

export function scrollToEnd() {
  byId("scroll").scrollTop = byId("scroll").scrollHeight;
}
