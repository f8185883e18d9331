"""Small torch programs, one story of parallelism per file; none knows of the profiler."""
