"""What each command of the command line does, one module for each. Imported only when the command runs."""
