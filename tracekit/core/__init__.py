"""Data and arithmetic: numpy only, pure, no files."""
