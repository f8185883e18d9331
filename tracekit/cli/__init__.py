"""The command line: the only place that prints, reads argv and exits."""
