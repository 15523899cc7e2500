"""The chat with a model: in a terminal or through a pipe, by HTTP (OpenAI's API and a page), and as a bot.

Which thread owns what in a server or a bot:

    event loop              connections, requests, limits, `Models`, the conversations of a bot
        |                   Engine.submit(question, receive), which any thread may call
        v
    engine: rows            of each model: replies that are generated token by token
    engine: searches        two of each model: searches that compare hypotheses
        |                   receive(piece) -> call_soon_threadsafe; `service.answers` is the only bridge
        v
    event loop              the events of a stream, or the whole reply

    asyncio.to_thread       loads and closes models, computes attention, makes long JSON, verifies signatures, and
                            appends ratings, under a lock

In a terminal, the main thread does everything, without an engine.
"""
