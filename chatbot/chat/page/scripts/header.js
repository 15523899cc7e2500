// The models in the header, and what they are in place of a conversation that has not begun.

import { sendQuestion } from "./composer.js";
import { byId, element, keepFocus, setLabel } from "./elements.js";
import { cardOf, factsOf, modelNamed, nameOf, sourceOf, technicalLine } from "./models.js";
import { beginConversation } from "./sidebar.js";
import { shown } from "./state.js";
import { saveConversation, store } from "./storage.js";
import { t } from "./texts.js";

export function showModels() {
  const [first, second] = shown.conversation.models;
  byId("second-model").hidden = second === undefined;
  showChoice(0, first, t(second === undefined ? "model" : "model_first"));
  if (second !== undefined) showChoice(1, second, t("model_second"));
  const compare = byId("compare");
  compare.hidden = shown.models.length < 2;
  compare.setAttribute("aria-pressed", String(second !== undefined));
  setLabel(compare, t(second === undefined ? "compare" : "compare_off"));
  showEmpty();
}

function showChoice(place, name, label) {
  const select = byId(`model-${place}`), model = modelNamed(name);
  const options = shown.models.map(({ id }) => element("option", { value: id }, nameOf(id)));
  if (name && !model) options.unshift(element("option", { value: name }, t("unknown_model", { name })));
  select.replaceChildren(...options);
  select.hidden = !options.length;
  select.value = name;
  select.setAttribute("aria-label", label);
  byId(`card-${place}`).textContent = model ? cardOf(model) : "";
  byId(`card-${place}`).title = model ? technicalLine(model) : "";
}

function showEmpty() {
  const { conversation } = shown;
  const models = conversation.models.map(modelNamed).filter(Boolean), [first, second] = models;
  byId("empty").hidden = conversation.nodes.length > 0 || !first;
  if (!first) return;
  const source = sourceOf(first), title = source === null ? t("empty_unknown") : t("empty_one", { source });
  byId("empty-name").textContent = second ? t("empty_two", { first: first.name, second: second.name }) : title;
  byId("empty-note").textContent = t(second ? "empty_note_two" : "empty_note");
  byId("try").hidden = !first.questions.length;
  keepFocus(() => byId("questions").replaceChildren(...first.questions.map(questionButton)));
  byId("facts").replaceChildren(...models.map((model) => factList(model, second !== undefined)));
  const lines = models.map((model) => element("p", {}, element("bdi", {}, technicalLine(model))));
  byId("technical").replaceChildren(...lines);
}

function questionButton(question, place) {
  const attributes = { class: "chip", type: "button", dir: "auto", "data-key": `try-${place}` };
  return element("li", {}, element("button", { ...attributes, onclick: () => sendQuestion(question) }, question));
}

function factList(model, named) {
  const rows = factsOf(model).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, element("bdi", {}, value))));
  const heading = named ? element("h3", {}, element("bdi", {}, model.name)) : null;
  return element("div", { class: "fact-list" }, heading, element("dl", {}, ...rows));
}

/** A change of the model begins with the next question. Two other models to compare need a new conversation. */
export function chooseModel(place, name) {
  const { conversation } = shown, chosen = conversation.models.map((old, i) => (i === place ? name : old));
  store("models", chosen);
  if (conversation.models.length > 1 && conversation.nodes.length) return beginConversation(chosen);
  conversation.models = chosen;
  conversation.revision += 1;
  if (conversation.nodes.length) saveConversation(conversation);
  showModels();
}

export function toggleComparison() {
  const [first, second] = shown.conversation.models;
  const other = shown.models.find(({ id }) => id !== first) ?? shown.models[0];
  beginConversation(second === undefined ? [first, other.id] : [first]);
}
