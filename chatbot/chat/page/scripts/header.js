// The model menu in the header, and the model's description in an empty conversation.

import { sendQuestion } from "./composer.js";
import { byId, element, keepFocus } from "./elements.js";
import { cardOf, describeModel, modelNamed, nameOf, sourceOf, technicalLine } from "./models.js";
import { shown } from "./state.js";
import { saveConversation, store } from "./storage.js";
import { t } from "./texts.js";

export function showModel() {
  const name = shown.conversation.model, model = modelNamed(name), select = byId("model");
  const options = shown.models.map(({ id }) => element("option", { value: id }, nameOf(id)));
  if (name && !model) options.unshift(element("option", { value: name }, t("unknown_model", { name })));
  select.replaceChildren(...options);
  select.hidden = !options.length;
  select.value = name;
  byId("card").textContent = model ? cardOf(model) : "";
  byId("card").title = model ? technicalLine(model) : "";
  showDescription(model);
}

function showDescription(model) {
  byId("empty").hidden = shown.conversation.nodes.length > 0 || !model;
  if (!model) return;
  const source = sourceOf(model);
  byId("empty-name").textContent = source === null ? t("empty_unknown") : t("empty_known", { source });
  byId("try").hidden = !model.questions.length;
  keepFocus(() => byId("questions").replaceChildren(...model.questions.map(questionButton)));
  byId("facts").replaceChildren(...describeModel(model).map(factElement));
  byId("technical").textContent = technicalLine(model);
}

function questionButton(question, place) {
  const attributes = { class: "chip", type: "button", dir: "auto", "data-key": `try-${place}` };
  return element("li", {}, element("button", { ...attributes, onclick: () => sendQuestion(question) }, question));
}

const factElement = ([name, value]) =>
  element("div", {}, element("dt", {}, name), element("dd", {}, element("bdi", {}, value)));

/** Chooses the model for the next question. */
export function chooseModel(name) {
  const { conversation } = shown;
  store("model", name);
  conversation.model = name;
  conversation.revision += 1;
  if (conversation.nodes.length) saveConversation(conversation);
  showModel();
}
