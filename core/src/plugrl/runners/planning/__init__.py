"""Plans for a configuration: its components are launched one at a time and measured, and the best plan is looked for.

:mod:`plugrl.runners.planning.command` is what `plugrl plan CONFIG` does; the search itself is
:mod:`plugrl.runtime.planner`.
"""
