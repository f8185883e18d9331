"""The look of the report: the only HTML, CSS and JavaScript of the project."""
