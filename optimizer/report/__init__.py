"""What a person or a script is shown of a study: progress, tables, JSON, launch flags and dashboard notes."""
