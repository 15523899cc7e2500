// Requests to the server. Its errors become one line in the language of the reader.

import { askForKey } from "./key.js";
import { notice } from "./messages.js";
import { storedKey } from "./storage.js";
import { t } from "./texts.js";

export class ServerError extends Error {
  /** key: of the text of the line. */
  constructor(key, values = {}) {
    super(t(key, values));
    this.key = key;
  }
}

/**
 * Returns the response to a request with this body (POST), or without one (GET). Throws ServerError.
 * path: relative to the page, which may be behind a prefix.
 */
export async function request(path, body = null, signal = null) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  if (storedKey()) headers.Authorization = `Bearer ${storedKey()}`;
  const options = { method: body ? "POST" : "GET", headers, signal, cache: "no-store" };
  if (body) options.body = JSON.stringify(body);
  const response = await fetch(path, options).catch((error) => throwBroken(error, "error_network"));
  if (!response.ok) throw await errorOf(response, body);
  return response;
}

/** Throws an error of the connection as a ServerError, unless the reader has stopped the reply. */
function throwBroken(error, key) {
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
    return new ServerError(key, { seconds: secondsToWait(response) });
  }
  if (response.status >= 500 && response.status !== 503) return new ServerError("error_server");
  return new ServerError("error_refused", { message });
}

const secondsToWait = (response) => Math.max(1, Math.ceil(Number(response.headers.get("Retry-After")) || 1));

/** Yields the objects of a stream of server-sent events until [DONE]. Throws ServerError if the stream breaks off. */
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const part = await reader.read().catch((error) => throwBroken(error, "error_broken"));
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

/** Shows the line of an error. action: what helps against most; against a missing key, its dialog does. */
export function showError(error, action = null) {
  if (!(error instanceof ServerError)) console.error(error);
  const text = error instanceof ServerError ? error.message : t("error_server");
  notice(text, error.key === "error_key" ? [t("key_enter"), askForKey] : action);
  if (error.key === "error_key") askForKey();
}
