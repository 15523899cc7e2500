"""Unusual questions for tests of replies."""

# No visible character.
EMPTY = ["", " \t\u3000", "\x00\x07\u200b"]
UNUSUAL = [
    "\x1b[31mred",
    "你好" * 5000,
    "😀👨\u200d👩\u200d👧 🇨🇳",
    "妳好嗎？請問國語怎麼說",
    "How are you today? I'm fine.",
    "\u202eabc",
    "<eos> <pad>",
]
