"""What ``plugrl plugins doctor --cluster`` shows: a row for each node, and its differences to the driver."""

from __future__ import annotations

from dataclasses import asdict

from plugrl.cli import console
from plugrl.plugins.ledger import Ledger

_COLUMNS = ("node", "host", "plugins", "fingerprint", "platform", "Ray counts", "mask", "like the driver")


def answer(address: str, ledger: Ledger, *, as_json: bool) -> int:
    """Examine the nodes of the cluster at ``address`` and return the exit code: 1 if any differs from this process."""
    from plugrl.runtime.cluster_report import report_cluster

    reports = report_cluster(address, ledger)
    differing = [report for report in reports if report.differences]
    if as_json:
        console.print_json({"fingerprint": ledger.fingerprint, "nodes": [asdict(report) for report in reports]})
        return int(bool(differing))
    rows = [
        (
            report.node,
            report.host,
            str(report.plugins),
            report.fingerprint,
            report.platform,
            report.resource or "-",
            "unset" if report.mask is None else report.mask or "(empty)",
            "no" if report.differences else "yes",
        )
        for report in reports
    ]
    console.say(f"This process has {len(ledger.rows)} plugins, fingerprint {ledger.fingerprint}.")
    console.show_table(_COLUMNS, rows)
    for report in differing:
        console.say(*(f"Node {report.node} {text}" for text in report.differences))
    return int(bool(differing))
