// Two tabs that add to the same conversation, for test_files.py: what both have, and which one was ahead.
const { addNode, conversationFrom, isAhead, merge, newConversation } = await load("conversation.js");
const answer = (text) => ({ answers: [{ model: "a", replies: [{ text }], chosen: 0, state: "done" }] });
const first = newConversation(["a"]), question = addNode(first, null, { question: "q" });
addNode(first, question.id, answer("old"));
const second = conversationFrom(JSON.parse(JSON.stringify(first)));
addNode(first, question.id, answer("one"));
const last = addNode(second, addNode(second, second.leaf, { question: "next" }).id, answer("two"));
second.nodes[1].answers[0].rating = "good";
second.nodes[1].revision = 1;
const copy = conversationFrom(JSON.parse(JSON.stringify(first)));
const ahead = [isAhead(first, second), isAhead(second, first)];
merge(first, second);
merge(second, copy);
ahead.push(isAhead(first, second), isAhead(second, first));
const text = ({ replies, rating }) => replies[0].text + (rating ?? "");
const texts = ({ nodes }) => nodes.map((node) => node.question ?? text(node.answers[0])).sort();
return [texts(first), texts(first).join() === texts(second).join(), ahead, second.leaf === last.id];
