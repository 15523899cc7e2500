"""Names of fields and columns, of roles, and what their values may be: facts, collected from files and programs.

A name that is not here is not understood: the file is shown, and the user says what it holds.
"""

import re
from collections.abc import Iterable

# Names of the question and of the answer. Both must be there for a record or a row to be a pair.
QUESTIONS = (
    *("question", "questions", "instruction", "query", "prompt", "input", "source", "src", "ask", "post", "q"),
    *("input_text", "source_text", "utterance", "patterns"),
    *("问题", "提问", "问", "問題", "提問", "問", "问句", "上句", "输入", "上联", "上聯", "上文", "前句", "質問"),
    *("标准问题", "标准问", "用户问题", "询问内容", "顾客提问", "客户提问", "客户问题", "咨询内容"),
    *("frage", "pregunta", "pergunta", "domanda", "вопрос", "питання", "질문", "soru", "pytanie", "otázka", "vraag"),
    *("câu hỏi", "pertanyaan", "سؤال", "السؤال", "คำถาม", "ερώτηση", "שאלה", "kérdés", "fråga"),
    *("customer message", "user question", "user message", "customer question"),
)
ANSWERS = (
    *("answer", "output", "response", "completion", "reply", "target", "tgt", "a", "answers", "responses", "replies"),
    *("output_text", "target_text", "resp", "agent reply", "bot response", "bot reply", "agent response"),
    *(
        "答案",
        "回答",
        "答",
        "回复",
        "答复",
        "回覆",
        "答覆",
        "答句",
        "下句",
        "输出",
        "下联",
        "下聯",
        "下文",
        "后句",
        "回應",
    ),
    *("标准回答", "标准答案", "回复内容", "客服回复", "客服回答", "机器人回复"),
    *("antwort", "respuesta", "resposta", "risposta", "réponse", "ответ", "відповідь", "답변", "대답", "cevap"),
    *("odpowiedź", "odpověď", "antwoord", "câu trả lời", "trả lời", "jawaban", "جواب", "الجواب", "إجابة"),
    *("คำตอบ", "απάντηση", "תשובה", "válasz", "svar"),
)
# A person on either side: the two columns of a table, or a speaker beside a text.
ASKING_PEOPLE = ("human", "user", "customer", "用户", "客户", "顾客", "买家", "患者", "提问者")
ANSWERING_PEOPLE = ("assistant", "bot", "agent", "机器人", "客服", "助手", "卖家", "医生", "回答者")
# A text that is the question beside an answer, if no better name is there.
TEXTS = (
    *("text", "content", "message", "body", "msg", "utterance", "sentence", "value", "turn", "transcript"),
    *("内容", "消息内容", "聊天内容", "消息", "正文", "文本", "发言", "句子", "title", "context"),
)
SEVERAL = ("question", "questions", "patterns", "q")  # that may have several phrasings in a list
INPUTS = ("input", "context")  # text that belongs to the question, beside one with another name
PHRASINGS = (  # other questions with the same answer
    *("similar_questions", "similar_question", "extend_questions", "extended_questions", "alternatives", "aliases"),
    *("相似问题", "相似问", "扩展问"),
)
HISTORY = "history"
# A column that may say which answers are right, or how alike two texts are.
VERDICTS = ("label", "score", "relevance", "is_duplicate", "is_correct", "similarity", "标签", "得分", "相似度")

SPEAKERS = (
    *("speaker", "sender", "from", "role", "author", "name", "nickname", "username", "user_name", "user", "talker"),
    *("sender_name", "sendername", "nick", "participant", "agent"),
    *("发送者", "发送人", "发言人", "说话人", "昵称", "角色", "用户名", "用户", "姓名"),
)
# Names that only messages have; an author and a content may also be those of a post or a comment.
SENDERS = (
    "speaker",
    "sender",
    "from",
    "talker",
    "sender_name",
    "sendername",
    "发送者",
    "发送人",
    "发言人",
    "说话人",
    "role",
    "角色",
)
SAID = ("message", "msg", "utterance", "消息", "消息内容", "聊天内容", "发言")
TIMES = (
    *("time", "timestamp", "date", "datetime", "ts", "created_at", "createdat", "create_time", "createtime", "sent_at"),
    *("时间", "发送时间", "日期", "消息时间"),
)
CHATS = (
    *("dialog_id", "dialogue_id", "conversation_id", "conv_id", "session_id", "chat_id", "thread_id", "channel"),
    *("会话id", "会话编号", "对话id", "会话", "对话", "工单号", "群名"),
)
MINE = ("is_sender", "issender", "is_send", "issend", "is_self", "isself", "is_me", "from_me", "is_from_me")
KINDS = ("type", "kind", "msg_type", "message_type", "content_type", "subtype", "type_name", "消息类型", "类型")
COUNTERS = ("id", "index", "no", "number", "turn", "turn_id", "seq", "序号", "编号", "")  # nothing depends on them
IDS = ("id", "message_id", "comment_id", "post_id", "msg_id", "_id", "uuid", "cid")
PARENTS = ("parent_id", "parent", "parent_comment_id", "parent_message_id", "reply_to", "reply_to_id", "in_reply_to")
# Lists of the turns of one conversation.
CONVERSATIONS = (
    *("messages", "conversations", "conversation", "dialog", "dialogue", "utterances", "turns", "contents", "chat"),
    *("items", "log", "content", "对话"),
)
# What has neither a question nor an answer, in a header of two columns.
NO_SIDES = (
    *("label", "class", "category", "score", "sentiment", "intent", "tag", "date", "time", "timestamp", "id", "index"),
    *("phone", "email", "address", "url", "age", "city", "country", "capital", "price", "word", "meaning"),
    *("translation", "姓名", "电话", "手机号", "邮箱", "地址", "年龄", "性别", "城市", "国家", "价格", "数量", "来源"),
    *(
        "链接",
        "中文",
        "英文",
        "英语",
        "日文",
        "单词",
        "释义",
        "解释",
        "翻译",
        "拼音",
        "词语",
        "词性",
        "标题",
        "联系方式",
    ),
    *("编号", "序号", "标签", "类别", "分类"),
)
HEADER_NAMES = frozenset(
    (
        *QUESTIONS,
        *ANSWERS,
        *ASKING_PEOPLE,
        *ANSWERING_PEOPLE,
        *TEXTS,
        *VERDICTS,
        *SPEAKERS,
        *TIMES,
        *CHATS,
        *NO_SIDES,
        *CONVERSATIONS,
    )
)

# Roles of messages.
ASKING = frozenset({"user", "human", "usr", "prompter", "patient", "用户", "人类", "问", "患者"})
ANSWERING = frozenset(
    ("assistant", "gpt", "bot", "chatbot", "chatgpt", "model", "sys", "ai", "bing", "bard", "claude", "moss", "doctor")
).union(("助手", "机器人", "答", "医生"))
UNHEARD = frozenset(  # messages that belong to no turn
    ("system", "tool", "function", "function_call", "function_response", "observation", "ipython")
)

_INVISIBLE = re.compile("[\u200b-\u200f\u202a-\u202e\u2060\ufeff]")


def key_of(name: str) -> str:
    """Return a name as it is compared: in small letters, without characters that cannot be seen."""
    return _INVISIBLE.sub("", name).strip().casefold()


def are_known(header: Iterable[str], least: int = 2) -> bool:
    """Return whether at least so many names of a header are known; both sides of a pair are two."""
    return len({key_of(name) for name in header} & HEADER_NAMES) >= least


def first_of(choice: tuple[str, ...], names: dict[str, str]) -> str:
    """Return the first name of the choice that is there, as the file spells it; "" without one. names: by `key_of`."""
    return next((names[name] for name in choice if name in names), "")
