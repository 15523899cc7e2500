// What the page shows.

/** models: as /chat/models describes them. mostCharacters: of a message that the server takes. */
export const shown = {
  conversation: null, models: [], ratingsAreCollected: false, mostCharacters: Infinity,
};

/** Says that a reply has changed, or that anything may have. */
export const changed = (reply = null) => document.dispatchEvent(new CustomEvent("changed", { detail: reply }));
