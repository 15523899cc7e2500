// Loads the server's models and describes their training data and quality.

import { request, ServerError, showError } from "./server.js";
import { changed, shown } from "./state.js";
import { formatted, t } from "./texts.js";

export const modelNamed = (name) => shown.models.find((model) => model.id === name);

/** Returns the display name of a model. */
export const nameOf = (id) => modelNamed(id)?.name ?? id;

let last = ""; // The latest descriptions from the server.

/**
 * Loads the server's models and updates the page if the models have changed. Returns an error or null.
 * quiet: Whether to hide errors.
 */
export async function loadModels({ quiet } = { quiet: false }) {
  let failed = null;
  try {
    const described = await (await request("chat/models")).json();
    if (JSON.stringify(described) === last) return null;
    last = JSON.stringify(described);
    shown.models = described.models;
    shown.ratingsAreCollected = described.ratings;
    shown.maxCharacters = described.most_characters;
    if (!shown.models.length) throw new ServerError("error_no_models");
  } catch (error) {
    failed = error;
    if (!quiet) showError(error, [t("try_again"), () => loadModels()]);
  }
  const { conversation } = shown;
  if (shown.models.length && !conversation.nodes.length) conversation.model = knownModel(conversation.model);
  changed();
  return failed;
}

/** Returns `name` if the server has this model; otherwise returns the name of the first model. */
const knownModel = (name) => (modelNamed(name) ?? shown.models[0]).id;

/** Returns the name of a model's training data; null if unknown. */
export function sourceOf({ sources }) {
  if (!sources.length) return null;
  if (sources.length < 3) return sources.join(t("and"));
  return t("sources", { first: sources[0], count: formatted(sources.length) });
}

/** Returns the facts about a model as [name, value] rows. */
export function describeModel(model) {
  const rows = [[t("fact_sure"), describePerplexity(model)]];
  const learned = [pairsOf(model), sourceOf(model)].filter(Boolean);
  if (learned.length) rows.unshift([t("fact_data"), learned.join(t("of"))]);
  const memory = ["memory_none", "memory_turn"][model.turns] ?? "memory_turns";
  rows.push([t("fact_memory"), t(memory, { turns: formatted(model.turns) })]);
  return rows;
}

const pairsOf = ({ pairs }) => (pairs === null ? null : t("pairs", { pairs: formatted(pairs) }));

/** Describes the loss as the perplexity per character, the number of equally likely characters to choose from. */
function describePerplexity({ nats_per_character: nats, validated }) {
  if (nats === null) return t(validated ? "sure_hidden" : "sure_unknown");
  const count = Math.exp(nats);
  return t("sure", { count: formatted(count, count < 10 ? 1 : 0) });
}

/** Returns the line to show below a model's name. */
export function cardOf(model) {
  const source = sourceOf(model), pairs = pairsOf(model);
  if (source === null) return t("card_unknown");
  return pairs === null ? t("card", { source }) : t("card_pairs", { source, pairs });
}

/** Returns the technical details of a model on one line. */
export function technicalLine(model) {
  const parts = [t("technical_name", { id: model.id }), ...(model.data.length > 2 ? [] : model.data)];
  parts.push(t("technical_step", { step: formatted(model.step) }));
  const nats = model.nats_per_character;
  if (nats !== null) parts.push(t("technical_nats", { nats: formatted(nats, 2) }));
  else if (!model.validated) parts.push(t("technical_not_validated"));
  if (model.format) parts.push(model.format);
  return parts.join(t("semicolon"));
}
