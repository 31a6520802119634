"""A chat answered, as news of what is said: what the front ends (OpenAI, Responses, Anthropic, Ollama) render."""
