"""Encoders, one short file per family."""
