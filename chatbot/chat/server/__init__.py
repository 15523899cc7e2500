"""An HTTP server with an OpenAI-compatible API and a web page."""
