// The texts of the page in the user's language.

import en from "../texts/en.js";
import zh from "../texts/zh.js";
import { setLabel } from "./elements.js";

const TEXTS = { en, zh };

export let language = "en";

/** Returns a text, with each placeholder {name} replaced by `values.name`. */
export function t(key, values = {}) {
  return TEXTS[language][key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

export const formatted = (number, digits = 0) =>
  new Intl.NumberFormat(language, { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(number);

/** Sets the language. choice: "en", "zh", or "" for the browser's language. */
export function setLanguage(choice) {
  const wanted = choice || (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");
  language = wanted in TEXTS ? wanted : "en";
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  document.title = t("title");
  for (const part of document.querySelectorAll("[data-text]")) part.textContent = t(part.dataset.text);
  for (const part of document.querySelectorAll("[data-placeholder]")) part.placeholder = t(part.dataset.placeholder);
  for (const part of document.querySelectorAll("[data-label]")) {
    if (part.matches("button")) setLabel(part, t(part.dataset.label));
    else part.setAttribute("aria-label", t(part.dataset.label));
  }
}
