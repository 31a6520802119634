"""Batches at work: reading their input, running their requests beside online traffic, writing their output."""
