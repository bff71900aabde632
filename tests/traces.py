"""What a text gives away of a caller: addresses, passwords, folders, certificates."""

from __future__ import annotations

from stackyard.scan.mirror_traces import Caller, fingerprint, parse_certificates


def traces(caller: Caller, text: str) -> list[str]:
    data = text.encode("utf-8", errors="replace")
    given = caller.certificates.intersection(parse_certificates(data))
    return sorted(caller.names(data) | {fingerprint(der) for der in given})
