"""What clients leave with a server: files, batches, responses, conversations. SQLite, and files beside it."""
