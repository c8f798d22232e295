"""Results: tables, figures and totals of a run. They are read from the run folder, never computed."""
