// A conversation in two tabs, and the browser's copy of it, for test_versions_in_any_order.py: what the page does with
// the functions of conversation.js.
const { addNode, parseConversation, isAhead, merge, newConversation, showVersion, turnsOf, withoutEmpty } =
  await load("conversation.js");
const textOf = (node) => node.question ?? node.answer.replies[0]?.text ?? "";
const find = (tab, id) => tab.nodes.find((node) => node.id === id);
let tabs, kept;
const actions = {
  describe: (tab) => [
    turnsOf(tab).flatMap(({ question, reply }) => [question.id, reply.id]),
    tab.nodes.map((node) => [node.id, node.parent, textOf(node), node.answer?.rating ?? null]),
  ],
  ask: (tab, parent, question) => addNode(tab, parent, { question }).id,
  reply(tab, question, text) {
    const answer = { model: "m", replies: text ? [{ text }] : [], chosen: 0, state: text ? "done" : "failed" };
    const { id } = addNode(tab, question, { answer });
    tab.nodes = withoutEmpty(tab.nodes);
    if (!find(tab, id)) showVersion(tab, find(tab, question));
    return id;
  },
  show: (tab, id) => showVersion(tab, find(tab, id)),
  rate(tab, id, rating) {
    find(tab, id).answer.rating = rating;
    find(tab, id).revision += 1;
  },
  save(tab) {
    const there = parseConversation(JSON.parse(kept));
    const more = there ? [isAhead(there, tab), isAhead(tab, there)] : [false, true];
    if (there) merge(tab, there);
    kept = JSON.stringify(tab);
    return more;
  },
};
actions.reload = (tab) => void (tabs[tabs.indexOf(tab)] = parseConversation(JSON.parse(kept)));
window.act = (name, tab, ...more) => actions[name](tabs[tab], ...more);
window.begin = () => {
  const first = newConversation("m");
  [tabs, kept] = [[first, structuredClone(first)], "null"];
};
