"""The web page: files in `site`, served as they are. It is a client of this server's API like any other."""
