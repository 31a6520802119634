"""Who may ask, for what, and how much: API keys and what they allow, and where browsers may come from."""
