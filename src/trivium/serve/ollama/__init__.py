"""Ollama's API, written over the chat core and the model store."""
