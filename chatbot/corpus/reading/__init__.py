"""Readers that convert corpus files to (question, answer) pairs of text.

The modules, in the order in which they process a file:

sources, containers, charset, text_file   find files, open archives, and decompress and decode texts
rows, binary_tables -> tables             split tables into rows and detect their columns or layout
objects -> places -> values               parse JSON and YAML, and find conversations by field names
layouts -> records                        convert values of known structure (layouts.yaml) to pairs or messages
lines, heads, subtitles, ...              split conversations in plain text
turns                                     pair each utterance with the one it answers

`read` detects the format of each text and yields the pairs lazily. `doubts` detects data that may not be pairs, so that
the user can be asked. The Report counts everything that cannot be used. Readers raise UserError for problems that the
user must correct.
"""
