"""Colours and layout. Text has a contrast of at least 4.5 to its ground, curves of at least 3 (WCAG 2.1)."""

from __future__ import annotations

LIGHT = {
    "ground": "#ffffff", "panel": "#f6f7f9", "text": "#1c2128", "quiet": "#5b6470", "line": "#d9dee5", "bad": "#b3261e", "mark": "#fff3d6",
    "c0": "#0063a8", "c1": "#c44b00", "c2": "#00795a", "c3": "#a8457f", "c4": "#8a6a00", "c5": "#5b4bb5", "c6": "#00829b", "c7": "#6b6b6b",
}  # fmt: skip
DARK = {
    "ground": "#14171c", "panel": "#1d2127", "text": "#e6e9ee", "quiet": "#a0a9b5", "line": "#363d47", "bad": "#ff8a80", "mark": "#3d3413",
    "c0": "#6cb4f5", "c1": "#ff9e64", "c2": "#4fd1a5", "c3": "#f19ad0", "c4": "#e5c15c", "c5": "#b6a8ff", "c6": "#5fd6e8", "c7": "#b5b5b5",
}  # fmt: skip


def _variables(colors: dict[str, str]) -> str:
    return "".join(f"--{name}:{color};" for name, color in colors.items())


STYLE = (
    f":root{{{_variables(LIGHT)}}}@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    + "".join(f".c{number}{{--c:var(--c{number})}}" for number in range(8))
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1500px;margin:0 auto;padding:20px clamp(12px,3vw,36px) 60px}
header{display:flex;align-items:baseline;gap:14px;flex-wrap:wrap}
h1{font-size:24px;margin:0;overflow-wrap:anywhere}
h2{font-size:18px;margin:34px 0 10px}
.quiet,.unit{color:var(--quiet);font-weight:400}
h2 .quiet{font-size:14px}
.unit{font-size:13px}
.bad{color:var(--bad);font-size:13px;font-weight:400}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:5px 18px 5px 0;border-bottom:1px solid var(--line)}
thead th{color:var(--quiet);font-weight:400;white-space:nowrap}
td{overflow-wrap:anywhere;min-width:4em}
.runs{margin-top:14px}
.runs td,.runs .chip{white-space:nowrap}
.runs tbody th{min-width:11em}
tbody th{font-weight:600}
.differs th,.differs td{background:var(--mark)}
.differs th{padding-left:6px}
.chip{display:inline-flex;align-items:center;gap:7px;margin-right:18px;overflow-wrap:anywhere}
.chip svg{width:28px;height:8px;flex:none}
.legend{margin:0 0 12px;font-size:14px}
.charts{display:grid;gap:14px;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr))}
.chart{margin:0;background:var(--panel);border-radius:10px;padding:12px 16px 10px;position:relative;min-width:0}
figcaption{margin-bottom:8px;overflow-wrap:anywhere}
.plot{position:relative;height:210px;margin:0 4px 24px 44px;touch-action:pan-y}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
path{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round;stroke-linecap:round;vector-effect:non-scaling-stroke}
path.grid{stroke:var(--line);stroke-width:1}
path.raw{opacity:.3;stroke-width:1}
path.faint{opacity:.5;stroke-width:1.25}
path.d1{stroke-dasharray:9 5}
path.d2{stroke-dasharray:2 5}
path.d3{stroke-dasharray:12 5 2 5}
path.d4{stroke-dasharray:5 5}
path.raw,path.faint{stroke-dasharray:none}
path.dot{stroke-width:7}
.plot span{position:absolute;font-size:12px;color:var(--quiet);white-space:nowrap;line-height:1;font-variant-numeric:tabular-nums}
.plot .y{right:calc(100% + 8px);transform:translateY(-50%)}
.plot .x{top:calc(100% + 8px);transform:translateX(-50%)}
.cursor{position:absolute;top:0;bottom:0;width:1px;background:var(--quiet);pointer-events:none}
.point{position:absolute;width:9px;height:9px;margin:-4.5px;border-radius:50%;background:var(--c);border:2px solid var(--panel);pointer-events:none}
.tip{position:absolute;z-index:2;top:4px;background:var(--ground);border:1px solid var(--line);border-radius:6px;padding:6px 9px;font-size:13px;
pointer-events:none;box-shadow:0 2px 10px #0003;font-variant-numeric:tabular-nums;max-width:min(320px,80%);overflow-wrap:anywhere}
.tip i{display:inline-block;width:9px;height:9px;border-radius:50%;background:var(--c);margin-right:6px}
@media (max-width:900px){
.runs,.runs tbody,.runs tr,.runs th{display:block}
.runs thead{display:none}
.runs tr{padding:10px 0;border-bottom:1px solid var(--line)}
.runs th,.runs td{border:0;padding:1px 0}
.runs td{display:inline-block;margin-right:18px}
.runs td::before{content:attr(data-head) " ";color:var(--quiet)}
.runs td:empty{display:none}
}
@media print{.chart{break-inside:avoid}}
"""
)
