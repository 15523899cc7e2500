"""Replies to questions that arrive one by one, from many threads, in batches."""
