"""Tables: CSV and TSV in their dialects, columns, line-aligned files."""
