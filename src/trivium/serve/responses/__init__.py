"""OpenAI's Responses over the chat core: items in, items out, events in between, state kept in the records."""
