"""What the page of a verdict has beside the common look."""

from __future__ import annotations

RULES = """
h1{font-size:22px;margin-bottom:10px}
dt{font-weight:600;margin-top:8px}
dd{margin:0;overflow-wrap:anywhere}
pre{overflow-x:auto;font-size:13px}
.more{background:var(--mark)}
.plot{height:190px}
figure p{margin:0 0 6px}
path.dot{stroke-width:7}
path.allowed{stroke:var(--quiet);stroke-dasharray:5 5}
"""
