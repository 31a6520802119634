"""Model files on disk: what they hold, where, and views of their bytes. Nothing here trusts a number that a file states."""
