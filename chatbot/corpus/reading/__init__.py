"""From files to (question, answer) pairs of text: sources -> text files -> format -> pairs.

A text file is opened (`files`: decompressed, its encoding detected), its format is detected from its first lines
(`format_detection.py`), and the reader of that format (`tables`, `values`, `dialogues`) yields its pairs lazily
(`read.py`). The Report counts lines and items that cannot be used. A UserError is raised for errors that the user must
correct.
"""
