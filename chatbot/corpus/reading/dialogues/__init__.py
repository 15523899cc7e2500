"""Layouts of conversations: chat exports, subtitles, labelled lines, published corpora."""
