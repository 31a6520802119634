"""The models that the server answers with: which there are, which are loaded, and how long they stay."""
