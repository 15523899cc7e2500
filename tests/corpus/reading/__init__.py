"""Tests of chatbot.corpus.reading, a file of tests for each of its files or formats."""
