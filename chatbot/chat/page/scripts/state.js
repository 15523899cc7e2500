// What the page shows, and the function that shows it.

import { newConversation } from "./conversation.js";

/** models: as /chat/models describes them. mostCharacters: of a message that the server takes. */
export const shown = {
  conversation: newConversation([""]), models: [], ratingsAreCollected: false, mostCharacters: Infinity,
};

let show = () => {};

/** draw: gets the reply that has changed, or null where anything may have. */
export function whenChanged(draw) {
  show = draw;
}

export const changed = (reply = null) => show(reply);
