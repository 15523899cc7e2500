"""The attention seq2seq model, in Keras 3 layers."""
