// What the page shows.

import { newConversation } from "./conversation.js";

/** models: as /chat/models describes them. mostCharacters: of a message that the server takes. */
export const shown = {
  conversation: newConversation([""]), models: [], ratingsAreCollected: false, mostCharacters: Infinity,
};

/** Says that a reply has changed, or that anything may have. */
export const changed = (reply = null) => document.dispatchEvent(new CustomEvent("changed", { detail: reply }));
