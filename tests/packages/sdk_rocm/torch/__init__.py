"""Stand-in for a build of torch: it has a version file and cannot be imported, since a probe must not."""

raise SystemExit("a probe imported torch")
