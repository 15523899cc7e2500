"""From files to (question, answer) pairs of text: sources -> text files -> format -> pairs.

A text file is opened (decompressed, its encoding detected), its format is detected from its first lines, and the
reader of that format yields its pairs lazily. The Report counts lines and items that cannot be used. A UserError is
raised for errors that the user must correct.
"""
