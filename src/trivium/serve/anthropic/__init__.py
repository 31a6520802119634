"""Anthropic's Messages, written over the chat core."""
