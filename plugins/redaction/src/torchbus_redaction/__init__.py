"""torchbus-redaction: hides secrets in everything that torchbus writes.

One redactor serves configurations, errors, warnings, ``explain()``, logs, reports and trackers.
"""
