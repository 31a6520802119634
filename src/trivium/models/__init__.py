"""Decoders: what a model is (spec), how its weights are found and laid (load), how it computes (decoder)."""
