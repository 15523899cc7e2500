"""From files to (question, answer) pairs of text: sources -> text files -> format -> pairs.

A text file is opened (`open`: decompressed, its charset detected), its format is detected from its first lines
(`detect.py`), and the reader of that format (`formats`) yields its pairs lazily (`read.py`). The Report counts lines
and items that cannot be used. A UserError is raised for errors that the user must correct.
"""
