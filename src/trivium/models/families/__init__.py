"""One file per family of models: how its checkpoints say what it is, and where its weights lie."""
