"""Tests of chatbot.corpus.reading, one file for each module or format."""
