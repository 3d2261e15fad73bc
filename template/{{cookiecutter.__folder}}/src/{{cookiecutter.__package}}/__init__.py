"""{{ cookiecutter.summary }}: the platform{{ ' and its engines' if cookiecutter.with_engine }}."""
