"""An attention seq2seq chatbot, trained by synchronous data parallelism on one or many GPUs."""
