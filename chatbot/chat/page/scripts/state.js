// The state of the page.

/** models: The descriptions from /chat/models. maxCharacters: The maximum message length that the server accepts. */
export const shown = {
  conversation: null, models: [], ratingsAreCollected: false, maxCharacters: Infinity,
};

/** Reports that a reply has changed, or that anything may have changed if no reply is specified. */
export const changed = (reply = null) => document.dispatchEvent(new CustomEvent("changed", { detail: reply }));
