"""From files to (question, answer) pairs of text: sources -> text files -> format -> pairs.

A text file is opened (decompressed, its encoding detected), its format is detected from its first lines, and the
reader of that format yields its pairs lazily. The Report counts what cannot be used; a UserError reports what the
user has to correct.
"""
