// Questions to the models: send, stop, retry, edit the last one.

// What is sent of the turns before a question; the models read less.
const MOST_MESSAGES = 40;
const MOST_CHARACTERS = 4000; // of each

let running = null; // the AbortController of the replies that are being generated
let edited = null; // the last turn, while its question is in the message field

const newAnswer = (model) => ({ model, replies: [], chosen: 0, state: "running", rating: null, ratedAt: null });

/** Returns the turns before a turn for one of the models, alternately question and reply. */
function historyOf(turns, turn, side) {
  const before = turns.slice(0, turns.indexOf(turn)).filter((old) => old.answers[side] && textOf(old.answers[side]));
  const texts = before.flatMap((old) => [old.question, textOf(old.answers[side])]);
  return texts.slice(-MOST_MESSAGES).map((text) => wellFormed(text.slice(0, MOST_CHARACTERS)));
}

function messagesOf(turns, turn, side) {
  const messages = historyOf(turns, turn, side).map((content, i) => ({ role: i % 2 ? "assistant" : "user", content }));
  return [...messages, { role: "user", content: turn.question }];
}

function sendMessage() {
  const input = byId("message"), question = wellFormed(input.value.trim());
  if (!question || running) return;
  if (!current.models[0]) return loadModels();
  if (edited && edited === current.turns.at(-1)) current.turns.pop();
  setEdited(null);
  input.value = "";
  fitMessage();
  const turn = { question, answers: [], vote: null };
  current.turns.push(turn);
  current.title ||= titleOf(question);
  generate(turn);
}

/** Returns a text without halves of characters, which no server can read. */
const wellFormed = (text) => new TextDecoder().decode(new TextEncoder().encode(text));

const titleOf = (question) => Array.from(plainLine(question)).slice(0, 60).join("");

/** Asks the models of the conversation for their replies to a turn. before: the text of the last replies, if any. */
async function generate(turn, before = []) {
  const conversation = current;
  const mine = new AbortController();
  running = mine;
  clearNotice();
  turn.answers = conversation.models.map(newAnswer);
  turn.vote = null;
  saveConversation(conversation);
  showConversations();
  showRunning();
  showTurns();
  scrollToEnd();
  await Promise.all(turn.answers.map((answer, side) => generateOne(conversation, turn, side, mine.signal)));
  turn.answers.forEach((answer, side) => {
    const alone = answer.state === "done" && answer.replies.length === 1 && textOf(answer) !== "";
    answer.same = alone && textOf(answer) === before[side];
  });
  if (running === mine) running = null;
  conversation.updated = Date.now();
  if (conversations.has(conversation.id)) saveConversation(conversation); // it may have been deleted
  showRunning();
  if (conversation !== current) return showConversations();
  const follows = isAtEnd();
  showAll();
  if (follows) scrollToEnd();
  announce(turn.answers.map(spoken).join("\n"));
}

const spoken = (answer) => textOf(answer) || t({ failed: "failed", stopped: "stopped" }[answer.state] ?? "no_reply");

async function generateOne(conversation, turn, side, signal) {
  const answer = turn.answers[side];
  const messages = messagesOf(conversation.turns, turn, side);
  try {
    const body = { model: answer.model, messages, stream: true, ...requestSettings() };
    const response = await request("/v1/chat/completions", body, signal);
    for await (const event of eventsOf(response)) {
      for (const choice of event.choices ?? []) addPiece(answer, choice);
      if (conversation === current) showPiece(turn, side);
    }
    answer.state = "done";
    answer.replies = distinct(answer.replies);
  } catch (error) {
    if (error.name === "AbortError") answer.state = "stopped";
    else fail(answer, error);
  }
}

/** Returns the replies without those that are empty or occur before. */
function distinct(replies) {
  const texts = replies.map((reply) => reply.text);
  const found = replies.filter((reply, i) => reply.text && texts.indexOf(reply.text) === i);
  return found.length ? found : replies.slice(0, 1);
}

function addPiece(answer, choice) {
  while (answer.replies.length <= choice.index) answer.replies.push({ text: "", score: null, tokens: 0 });
  const reply = answer.replies[choice.index];
  reply.text += choice.delta?.content ?? "";
  for (const { logprob } of choice.logprobs?.content ?? []) {
    reply.tokens += 1;
    reply.score = (reply.score ?? 0) + (logprob - (reply.score ?? 0)) / reply.tokens; // the mean of all so far
  }
}

function fail(answer, error) {
  answer.state = "failed";
  showError(error, [t("retry"), retryLast]);
  if (error.key === "error_model") loadModels();
}

/** Shows the line of an error. action: what helps against most; against a missing key, the settings do. */
function showError(error, action) {
  if (!(error instanceof ServerError)) console.error(error);
  const text = error instanceof ServerError ? error.message : t("error_server");
  notice(text, error.key === "error_key" ? [t("settings"), openSettings] : action);
}

function stopReplies() {
  running?.abort();
}

function retryLast() {
  const turn = current.turns.at(-1);
  if (turn && !running) generate(turn, turn.answers.map(textOf));
}

function editLast() {
  const turn = current.turns.at(-1);
  if (!turn || running) return;
  setEdited(turn);
  byId("message").value = turn.question;
  fitMessage();
  byId("message").focus();
  announce(t("editing"));
}

/** turn: the last one, whose question is in the message field; null: none. */
function setEdited(turn) {
  edited = turn;
  byId("editing").hidden = turn === null;
}

function cancelEditing() {
  if (!edited) return;
  setEdited(null);
  byId("message").value = "";
  fitMessage();
  byId("message").focus();
}

/** Shows the button that sends or the one that stops. */
function showRunning() {
  const focused = [byId("send"), byId("stop")].includes(document.activeElement);
  byId("send").hidden = running !== null;
  byId("stop").hidden = running === null;
  if (focused) byId(running ? "stop" : "message").focus();
}

/** Makes the message field as high as its text. */
function fitMessage() {
  const input = byId("message");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

/** Puts the cursor into the message field, but on a phone, whose keyboard would cover half of the page. */
function focusMessage() {
  if (!matchMedia("(pointer: coarse)").matches) byId("message").focus();
}
