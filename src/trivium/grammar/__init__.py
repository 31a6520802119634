"""Answers of a given form: grammars compiled and matched in a process of their own, which tells the engine its masks."""
