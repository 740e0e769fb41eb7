"""The rules that the report adds to the common style sheet, and the colours of curves.

The contrast of curves to the background is at least 3 (WCAG 2.1).
"""

from __future__ import annotations

LIGHT = {
    "c0": "#0063a8",
    "c1": "#c44b00",
    "c2": "#00795a",
    "c3": "#a8457f",
    "c4": "#8a6a00",
    "c5": "#5b4bb5",
    "c6": "#00829b",
    "c7": "#6b6b6b",
}
DARK = {
    "c0": "#6cb4f5",
    "c1": "#ff9e64",
    "c2": "#4fd1a5",
    "c3": "#f19ad0",
    "c4": "#e5c15c",
    "c5": "#b6a8ff",
    "c6": "#5fd6e8",
    "c7": "#b5b5b5",
}
RULES = (
    "".join(f".c{number}{{--c:var(--c{number})}}" for number in range(8))
    + """
header{display:flex;align-items:baseline;gap:14px;flex-wrap:wrap}
.unit{color:var(--quiet);font-weight:400}
.unit{font-size:13px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:5px 18px 5px 0;border-bottom:1px solid var(--line)}
thead th{color:var(--quiet);font-weight:400;white-space:nowrap}
td{overflow-wrap:anywhere;min-width:4em}
.runs{margin-top:14px}
.runs td,.runs .chip,.sheet td{white-space:nowrap}
.runs tbody th{min-width:11em}
tbody th{font-weight:600}
.differs th,.differs td{background:var(--mark)}
.differs th{padding-left:6px}
.chip{display:inline-flex;align-items:center;gap:7px;margin-right:18px;overflow-wrap:anywhere}
.chip svg{width:28px;height:8px;flex:none}
.plot{margin-left:44px;touch-action:pan-y}
path{stroke:var(--c)}
.legend{margin:0 0 12px;font-size:14px}
path.raw{opacity:.3;stroke-width:1}
path.faint{opacity:.5;stroke-width:1.25}
path.d1{stroke-dasharray:9 5}
path.d2{stroke-dasharray:2 5}
path.d3{stroke-dasharray:12 5 2 5}
path.d4{stroke-dasharray:5 5}
path.raw,path.faint{stroke-dasharray:none}
path.dot{stroke-width:7}
.cursor{position:absolute;top:0;bottom:0;width:1px;background:var(--quiet);pointer-events:none}
.point{position:absolute;width:9px;height:9px;margin:-4.5px;border-radius:50%;background:var(--c);border:2px solid var(--panel);pointer-events:none}
.tip{position:absolute;z-index:2;top:4px;background:var(--ground);border:1px solid var(--line);border-radius:6px;padding:6px 9px;font-size:13px;
pointer-events:none;box-shadow:0 2px 10px #0003;font-variant-numeric:tabular-nums;max-width:min(320px,80%);overflow-wrap:anywhere}
.tip i{display:inline-block;width:9px;height:9px;border-radius:50%;background:var(--c);margin-right:6px}
button{font:inherit;font-size:13px;color:var(--quiet);background:none;border:1px solid transparent;border-radius:6px;padding:1px 6px;cursor:pointer}
button:hover{border-color:var(--line)}
.legend button{font-size:14px;color:var(--text);padding:2px 4px;margin-right:8px}
.legend .chip{margin-right:0}
.legend [aria-pressed=false]{opacity:.4;text-decoration:line-through}
.tools{float:right}
.tools [aria-pressed=true]{color:var(--text);border-color:var(--line)}
.zoomed svg{overflow:hidden}
.chosen{position:absolute;top:0;bottom:0;background:var(--c0);opacity:.15;pointer-events:none}
svg.heat rect{fill:var(--c)}
.pictures img{display:block;width:100%;max-height:340px;object-fit:contain;image-rendering:pixelated}
.pictures img[hidden]{display:none}
.pictures input{width:100%;margin:8px 0 0}
a{color:var(--ours)}
.filter{display:flex;gap:8px;margin:14px 0;flex-wrap:wrap}
.filter input{flex:1 1 260px;max-width:480px;font:inherit;color:var(--text);background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:5px 9px}
.filter button,.compare{color:var(--text);border-color:var(--line)}
.running{color:var(--c2);font-weight:600}
.crashed{color:var(--bad)}
@media (max-width:900px){
.runs,.runs tbody,.runs tr,.runs th{display:block}
.runs thead{display:none}
.list thead{display:block}
.list thead th{display:inline-block;margin-right:14px}
.runs tr{padding:10px 0;border-bottom:1px solid var(--line)}
.runs th,.runs td{border:0;padding:1px 0}
.runs td{display:inline-block;margin-right:18px}
.runs td::before{content:attr(data-head) " ";color:var(--quiet)}
.runs td:empty{display:none}
}
"""
)
