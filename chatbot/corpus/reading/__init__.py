"""From files to (question, answer) pairs of text, in the order of the way that they go.

sources, containers, charset, text_file   files, archives and their parts; texts, decompressed and decoded
detect                                    the format of a text, by its first lines
rows, binary_tables -> tables             rows, and the columns or the layout of a table
objects -> places -> values               values of JSON and YAML, and where in a document they stand
layouts -> mapping -> records             by which layout values are read, its map, and what it gives
lines, heads, questions, subtitles, ...   texts of conversations
turns                                     pairs of who said what

`read` asks each in turn, and yields the pairs lazily. `doubts` has the reasons to ask the user. The Report counts lines
and items that cannot be used. A UserError is raised for errors that the user must correct.
"""
