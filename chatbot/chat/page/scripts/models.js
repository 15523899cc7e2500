// The models of the server, and the card of each: what it was trained on, and its quality.

let models = [];
let ratingsAreCollected = false;

const modelNamed = (name) => models.find((model) => model.id === name);

async function loadModels() {
  try {
    const described = await (await request("/chat/models")).json();
    models = described.models;
    ratingsAreCollected = described.ratings;
    if (!models.length) throw new ServerError("error_no_models");
  } catch (error) {
    showError(error, [t("retry"), loadModels]);
  }
  if (models.length && !current.turns.length) current.models = current.models.map((name, i) => knownModel(name, i));
  showAll();
}

/** Returns a name if the server has that model, or else the first one, or the second one beside it. */
const knownModel = (name, place) => (modelNamed(name) ?? models[place % Math.max(1, models.length)] ?? { id: "" }).id;

const trainedOn = (model) =>
  model.data.length === 1 ? model.data[0] : t("files", { count: formatted(model.data.length) });

/** Returns the facts of a model as [name, value] rows. */
function factsOf(model) {
  const data = model.data.length ? trainedOn(model) : null;
  const pairs = model.pairs === null ? null : formatted(model.pairs);
  const rows = [];
  if (data && pairs) rows.push([t("card_pairs"), t("card_pairs_value", { pairs, data })]);
  else if (data) rows.push([t("card_pairs"), t("card_data_value", { data })]);
  rows.push([t("card_step"), t("card_step_value", { step: formatted(model.step) })]);
  rows.push([t("card_quality"), quality(model, "")]);
  const memory = model.turns ? t("card_memory_turns", { turns: formatted(model.turns) }) : t("card_memory_none");
  rows.push([t("card_memory"), memory]);
  if (model.format) rows.push([t("card_format"), model.format]);
  return rows.filter(([, value]) => value);
}

/** Returns the line under a model's name. */
function cardLine(model) {
  const pairs = model.pairs === null ? null : t("card", { pairs: formatted(model.pairs) });
  const parts = [pairs, quality(model, "_short"), t("card_step_value", { step: formatted(model.step) })];
  return parts.filter(Boolean).join(t("comma"));
}

function quality(model, form) {
  if (model.nats_per_character !== null) {
    return t(`card_quality${form || "_value"}`, { nats: formatted(model.nats_per_character, 2) });
  }
  return model.validated ? "" : t(`card_not_validated${form}`);
}

function showModels() {
  const [first, second] = current.models;
  byId("second-model").hidden = second === undefined;
  showChoice(0, first, t(second === undefined ? "model" : "model_first"));
  if (second !== undefined) showChoice(1, second, t("model_second"));
  const compare = byId("compare");
  compare.hidden = models.length < 2;
  compare.setAttribute("aria-pressed", String(second !== undefined));
  setLabel(compare, t(second === undefined ? "compare" : "compare_off"));
  showEmpty();
}

function showChoice(place, name, label) {
  const select = byId(`model-${place}`);
  const names = models.map((model) => model.id);
  const options = names.map((id) => element("option", { value: id }, id));
  if (name && !names.includes(name)) {
    options.unshift(element("option", { value: name }, `${name} (${t("unknown_model")})`));
  }
  select.replaceChildren(...options);
  select.hidden = !options.length;
  select.value = name;
  select.setAttribute("aria-label", label);
  const model = modelNamed(name);
  byId(`card-${place}`).textContent = model ? cardLine(model) : "";
}

/** Shows the facts of the models in place of a conversation that has not begun. */
function showEmpty() {
  const shown = current.models.map(modelNamed).filter(Boolean);
  byId("empty").hidden = current.turns.length > 0 || !shown.length;
  if (!shown.length) return;
  const [first, second] = shown;
  byId("empty-name").textContent =
    second ? t("empty_two", { first: first.id, second: second.id }) : t("empty_one", { model: first.id });
  byId("empty-note").textContent = t(second ? "empty_note_two" : "empty_note");
  byId("facts").replaceChildren(...shown.map((model) => factList(model, shown.length > 1)));
}

function factList(model, named) {
  const rows = factsOf(model).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, element("bdi", {}, value))));
  const heading = named ? element("h3", {}, element("bdi", {}, model.id)) : null;
  return element("div", { class: "fact-list" }, heading, element("dl", {}, ...rows));
}

/** A change of the model begins with the next question. Two other models to compare need a new conversation. */
function chooseModel(place, name) {
  const chosen = current.models.map((old, i) => (i === place ? name : old));
  store("models", chosen);
  if (current.models.length > 1 && current.turns.length) return beginConversation(chosen);
  current.models = chosen;
  if (current.turns.length) saveConversation(current);
  showModels();
}

function toggleComparison() {
  const [first, second] = current.models;
  const other = models.find((model) => model.id !== first) ?? models[0];
  beginConversation(second === undefined ? [first, other.id] : [first]);
}
