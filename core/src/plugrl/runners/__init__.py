"""The loops: each reads from top to bottom and strings components together; it knows no model, engine or chip."""
