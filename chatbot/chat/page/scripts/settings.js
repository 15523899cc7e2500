// Manages the settings: decoding options, language and theme.

import { byId, element, setIcon, setLabel } from "./elements.js";
import { tryKey } from "./key.js";
import { changed } from "./state.js";
import { rememberedKey, rememberKey, store, stored, storedKey, storeKey } from "./storage.js";
import { language, setLanguage, t } from "./texts.js";
import { isKey, oneOf } from "./untrusted.js";

const MAX_REPLIES = 32; // per request
const SEEDS = 2 ** 31;

const SAMPLING_FIELDS = [
  { name: "temperature", type: "range", min: 0.1, max: 2, step: 0.1, initial: 1 },
  { name: "top_p", type: "range", min: 0.05, max: 1, step: 0.05, initial: 1 },
  { name: "min_p", type: "range", min: 0, max: 1, step: 0.01, initial: 0 },
  { name: "presence_penalty", type: "range", min: 0, max: 2, step: 0.1, initial: 0 },
  { name: "frequency_penalty", type: "range", min: 0, max: 2, step: 0.1, initial: 0 },
  { name: "seed", type: "number", min: 0, max: SEEDS - 1, step: 1, initial: null },
];
const REPLY_FIELDS = [
  { name: "n", type: "range", min: 1, max: 8, step: 1, initial: 1 },
  { name: "max_tokens", type: "number", min: 1, max: 1000, step: 1, initial: null },
];
const FIELDS = [...SAMPLING_FIELDS, ...REPLY_FIELDS];
const INITIAL = Object.fromEntries(FIELDS.map(({ name, initial }) => [name, initial]));
const DEFAULTS = { search: "own", language: "", theme: "", ...INITIAL };

export const settings = { ...DEFAULTS };

function loadSettings() {
  const known = stored("settings", {});
  for (const { name, min, max } of FIELDS) {
    if (Number.isFinite(known[name]) && known[name] >= min && known[name] <= max) settings[name] = known[name];
  }
  settings.search = oneOf(known.search, ["own", "sampling"]) ?? DEFAULTS.search;
  settings.language = oneOf(known.language, ["en", "zh"]) ?? "";
  settings.theme = oneOf(known.theme, ["light", "dark"]) ?? "";
}

/**
 * Returns the decoding fields of a request, except fields with default values.
 * before: The number of earlier replies to the question, which the search will find again. varied: Whether to sample
 * instead of using the model's default search.
 */
export function requestSettings(before, varied) {
  const sent = varied ? { temperature: DEFAULTS.temperature } : {};
  if (settings.search === "sampling") {
    sent.temperature = settings.temperature;
    sent.seed = settings.seed === null ? Math.floor(Math.random() * SEEDS) : (settings.seed + before) % SEEDS;
    for (const name of ["top_p", "min_p", "presence_penalty", "frequency_penalty"]) {
      if (settings[name] !== DEFAULTS[name]) sent[name] = settings[name];
    }
  }
  if (settings.max_tokens !== null) sent.max_tokens = settings.max_tokens;
  const n = Math.min(settings.n + before, MAX_REPLIES);
  if (n > 1) sent.n = n;
  if (settings.n > 1) sent.logprobs = true;
  return sent;
}

function field({ name, type, min, max, step }) {
  const input = element("input", { id: `set-${name}`, name, type, min, max, step, "aria-describedby": `help-${name}` });
  const value = type === "range" ? element("output", { for: input.id, id: `value-${name}` }) : null;
  const label = element("label", { for: input.id, "data-text": name });
  const help = element("p", { class: "help", id: `help-${name}`, "data-text": `${name}_help` });
  return element("div", { class: "field" }, element("div", { class: "field-head" }, label, value), input, help);
}

function showSettings() {
  const form = byId("settings-form").elements;
  for (const { name } of FIELDS) form[name].value = settings[name] ?? "";
  for (const name of ["search", "language", "theme"]) form[name].value = settings[name];
  form.key.value = storedKey();
  showValues();
}

function showValues() {
  const form = byId("settings-form").elements;
  for (const { name, type } of FIELDS) if (type === "range") byId(`value-${name}`).textContent = form[name].value;
  byId("sampling-fields").hidden = form.search.value !== "sampling";
}

/** Reads the settings from the form. Invalid fields keep their previous valid values. */
function readSettings() {
  const form = byId("settings-form").elements;
  for (const { name } of FIELDS) {
    if (form[name].validity.valid) settings[name] = form[name].value === "" ? DEFAULTS[name] : Number(form[name].value);
  }
  for (const name of ["search", "language", "theme"]) settings[name] = form[name].value;
  saveSettings();
}

function saveSettings() {
  store("settings", settings);
  setLanguage(settings.language);
  setTheme();
  changed();
  showValues();
}

export function openSettings() {
  showSettings();
  byId("settings").showModal();
}

/** Stores or removes the key, and reloads the models if a key was entered. */
function readKey() {
  const input = byId("key"), key = input.value.trim();
  input.setCustomValidity(!key || isKey(key) ? "" : t("key_invalid"));
  if (!input.reportValidity()) return;
  storeKey(key);
  if (rememberedKey()) rememberKey(key);
  if (key) tryKey();
}

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function setTheme() {
  const theme = settings.theme || (systemIsDark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  const other = theme === "dark" ? "light" : "dark";
  setIcon(byId("theme"), other);
  setLabel(byId("theme"), t(`theme_${other}`));
}

export function startSettings() {
  loadSettings();
  byId("sampling-fields").append(...SAMPLING_FIELDS.map(field));
  byId("reply-fields").append(...REPLY_FIELDS.map(field));
  setLanguage(settings.language);
  setTheme();
  showSettings();
  byId("settings-form").addEventListener("input", (event) => {
    if (event.target.id === "key") event.target.setCustomValidity("");
    else showValues();
  });
  byId("settings-form").addEventListener("change", (event) => (event.target.id === "key" ? readKey() : readSettings()));
  byId("settings-button").addEventListener("click", openSettings);
  byId("reset").addEventListener("click", () => {
    Object.assign(settings, DEFAULTS);
    saveSettings();
    showSettings();
  });
  byId("theme").addEventListener("click", () => {
    settings.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    saveSettings();
  });
  byId("language").addEventListener("click", () => {
    settings.language = language === "zh" ? "en" : "zh";
    saveSettings();
  });
  systemIsDark.addEventListener("change", setTheme);
}
