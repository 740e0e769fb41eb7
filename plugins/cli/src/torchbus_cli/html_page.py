"""The common style of the HTML pages that commands write, each one self-contained file.

Text has a contrast of at least 4.5 to its background, in light and in dark mode (WCAG 2.1).
"""

from __future__ import annotations

import html
from collections.abc import Mapping

LIGHT = {
    "ground": "#ffffff",
    "panel": "#f6f7f9",
    "text": "#1c2128",
    "quiet": "#5b6470",
    "line": "#d9dee5",
    "bad": "#b3261e",
    "mark": "#fff3d6",
    "ours": "#0063a8",
}
DARK = {
    "ground": "#14171c",
    "panel": "#1d2127",
    "text": "#e6e9ee",
    "quiet": "#a0a9b5",
    "line": "#363d47",
    "bad": "#ff8a80",
    "mark": "#3d3413",
    "ours": "#6cb4f5",
}
NO_COLOURS: Mapping[str, str] = {}
RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1500px;margin:0 auto;padding:20px clamp(12px,3vw,36px) 60px}
h1{font-size:24px;margin:0;overflow-wrap:anywhere}
h2{font-size:18px;margin:34px 0 10px}
.quiet{color:var(--quiet);font-weight:400}
h2 .quiet{font-size:14px}
.bad{color:var(--bad);font-size:13px;font-weight:400}
.charts{display:grid;gap:14px;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr))}
.chart{margin:0;background:var(--panel);border-radius:10px;padding:12px 16px 10px;
position:relative;min-width:0}
figcaption{margin-bottom:8px;overflow-wrap:anywhere}
.plot{position:relative;height:210px;margin:0 4px 24px 48px}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
path{fill:none;stroke:var(--ours);stroke-width:2;stroke-linejoin:round;stroke-linecap:round;
vector-effect:non-scaling-stroke}
path.grid{stroke:var(--line);stroke-width:1}
.plot span{position:absolute;font-size:12px;color:var(--quiet);white-space:nowrap;line-height:1;
font-variant-numeric:tabular-nums}
.plot .y{right:calc(100% + 8px);transform:translateY(-50%)}
.plot .x{top:calc(100% + 8px);transform:translateX(-50%)}
@media print{.chart{break-inside:avoid}}
"""


def document(
    title: str,
    body: str,
    rules: str = "",
    script: str = "",
    light: Mapping[str, str] = NO_COLOURS,
    dark: Mapping[str, str] = NO_COLOURS,
) -> str:
    """Return a whole page.

    ``rules`` is additional CSS, after the common rules. ``light`` and ``dark`` are further colours
    by name, for ``var(--name)``.
    """
    style = _variables({**LIGHT, **light}, {**DARK, **dark}) + RULES + rules
    code = f"<script>{script}</script>" if script else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{body}</main>{code}</body></html>\n"
    )


def _variables(light: Mapping[str, str], dark: Mapping[str, str]) -> str:
    day, night = (
        "".join(f"--{name}:{color};" for name, color in colors.items()) for colors in (light, dark)
    )
    return f":root{{{day}}}@media (prefers-color-scheme:dark){{:root{{{night}}}}}"
