// Sends requests to the server. Errors are converted to one-line messages in the user's language.

import { openKeyDialog } from "./key.js";
import { notice } from "./messages.js";
import { storedKey } from "./storage.js";
import { t } from "./texts.js";

export class ServerError extends Error {
  /** key: The name of the message text. values: The values of its placeholders. */
  constructor(key, values = {}) {
    super(t(key, values));
    this.key = key;
  }
}

/**
 * Sends a POST request if there is a body, or a GET request otherwise. Returns the response. Throws ServerError.
 * path: The path relative to the page, whose own path may have a prefix.
 */
export async function request(path, body = null, signal = null) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  if (storedKey()) headers.Authorization = `Bearer ${storedKey()}`;
  const options = { method: body ? "POST" : "GET", headers, signal, cache: "no-store" };
  if (body) options.body = JSON.stringify(body);
  const response = await fetch(path, options).catch((error) => throwConnectionError(error, "error_network"));
  if (!response.ok) throw await errorOf(response, body);
  return response;
}

/** Rethrows a connection error as a ServerError, unless the user stopped the reply. */
function throwConnectionError(error, key) {
  throw error.name === "AbortError" ? error : new ServerError(key);
}

async function errorOf(response, body) {
  const error = await response.json().then((content) => content.error ?? {}, () => ({}));
  const message = typeof error.message === "string" ? error.message : `HTTP ${response.status}`;
  if (response.status === 401) return new ServerError("error_key");
  if (response.status === 404 && body?.model) return new ServerError("error_model", { model: body.model });
  if (response.status === 413) return new ServerError("error_large");
  if (response.status === 429 || response.headers.has("Retry-After")) {
    const key = error.code === "rate_limit_exceeded" ? "error_rate" : "error_busy";
    return new ServerError(key, { seconds: retrySeconds(response) });
  }
  if (response.status >= 500 && response.status !== 503) return new ServerError("error_server");
  return new ServerError("error_refused", { message });
}

const retrySeconds = (response) => Math.max(1, Math.ceil(Number(response.headers.get("Retry-After")) || 1));

/** Yields the objects in a stream of server-sent events until [DONE]. Throws ServerError if the stream breaks off. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const part = await reader.read().catch((error) => throwConnectionError(error, "error_broken"));
    if (part.done) throw new ServerError("error_broken");
    const lines = (rest + part.value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines.filter((text) => text.startsWith("data:"))) {
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield eventOf(data);
    }
  }
}

function eventOf(data) {
  let event;
  try {
    event = JSON.parse(data);
  } catch {
    throw new ServerError("error_broken");
  }
  if (event.error) throw new ServerError("error_refused", { message: String(event.error.message ?? "") });
  return event;
}

/** Shows an error, and opens the key dialog if a valid key is missing. action: An optional button, see `notice`. */
export function showError(error, action = null) {
  if (!(error instanceof ServerError)) console.error(error);
  const text = error instanceof ServerError ? error.message : t("error_server");
  notice(text, error.key === "error_key" ? [t("key_enter"), openKeyDialog] : action);
  if (error.key === "error_key") openKeyDialog();
}
