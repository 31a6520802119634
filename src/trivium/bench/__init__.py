"""Measures an OpenAI server from outside: loads, samples, figures, reports, and the evidence for them."""
