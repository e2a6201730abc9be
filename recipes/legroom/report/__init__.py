"""Records to rows, tables, a picture and pages."""
