"""What models write beside plain text, each family in its own way: reasoning and tool calls, read as they come."""
