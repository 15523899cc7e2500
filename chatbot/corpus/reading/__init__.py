"""From a user's file to its (question, answer) pairs of text: sources -> texts -> format -> pairs.

A text is opened (unpacked, its encoding found), its format is found from its beginning, and one function a format
reads it lazily. What cannot be used is counted in the Report; what the user has to mend is a UserError.
"""
