"""The page's style sheet, and the script that zooms its timeline."""

from __future__ import annotations

from resilient_launch.policy.partition import Label

_LIGHT = (
    "--ink:#1d2430;--soft:#5b6573;--paper:#fff;--panel:#f4f6f8;--rule:#dde2e8;"
    "--useful:#2f9e5b;--start_up:#f0b429;--restart:#e07b28;--restore:#c9a227;--rework:#d1434b;--checkpoint:#3f7fd0;"
    "--hang:#8e2f5c;--straggler:#b35fc4;--emergency:#1f4f96;--idle_tail:#9aa4b1;--unknown:#6d7580;--queue_wait:#e3e8ee;"
    "--l0:#3f7fd0;--l1:#e07b28;--l2:#2f9e5b;--l3:#b35fc4;--l4:#d1434b;--l5:#0f8f94"
)
_DARK = (
    "--ink:#e6eaf0;--soft:#9aa6b5;--paper:#14181f;--panel:#1d232d;--rule:#333c49;"
    "--useful:#3fbf73;--start_up:#f2c14e;--restart:#ee8f45;--restore:#d9b84a;--rework:#e5626a;--checkpoint:#5c9cf0;"
    "--hang:#c65a8d;--straggler:#c883d8;--emergency:#3f74c9;--idle_tail:#78828f;--unknown:#98a1ad;--queue_wait:#2a323e;"
    "--l0:#5c9cf0;--l1:#ee8f45;--l2:#3fbf73;--l3:#c883d8;--l4:#e5626a;--l5:#35b8bd"
)
STYLE = "\n".join(
    [
        f":root{{color-scheme:light dark;{_LIGHT}}}",
        f"@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}",
        "*{box-sizing:border-box}",
        "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;"
        "margin:0 auto;padding:1rem}",
        "h1{font-size:1.6rem;margin:.5rem 0}h1 small,small{color:var(--soft);font-weight:400;font-size:.85rem}",
        "h2{font-size:1.05rem;margin:1.8rem 0 .5rem}p{color:var(--soft);margin:.3rem 0}",
        "article+article{border-top:2px solid var(--rule);margin-top:2rem}",
        ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem}",
        ".figures div{background:var(--panel);border-radius:.5rem;padding:.6rem .8rem;display:flex;"
        "flex-direction:column}.figures b{font-size:1.5rem;line-height:1.2}",
        ".stack{display:flex;height:1.6rem;border-radius:.3rem;overflow:hidden}.stack i{min-width:1px}",
        "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}",
        "td,th{padding:.25rem .6rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}",
        "td:first-child,th:first-child,td:nth-child(2),th:nth-child(2),td:last-child,th:last-child{text-align:left}",
        "td.words{white-space:normal;min-width:18rem}",
        "th{color:var(--soft);font-weight:500}.shares{width:auto;margin-top:.5rem}",
        ".shares td:nth-child(2),.shares td:nth-child(3){text-align:right}",
        ".key{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.5rem}",
        ".scroll{overflow-x:auto}code{display:block;width:fit-content;max-width:100%;background:var(--panel);"
        "padding:.1rem .5rem;border-radius:.3rem;margin:.2rem 0;overflow-x:auto}",
        ".row{display:grid;grid-template-columns:8.5rem 1fr;align-items:center;margin:2px 0}",
        ".row>span{font-size:.85rem;padding-right:.4rem;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}",
        ".row svg{width:100%;height:1.3rem;background:var(--panel);border-radius:.2rem;touch-action:pan-y;cursor:grab}",
        ".axis div{display:flex;justify-content:space-between;color:var(--soft);font-size:.8rem}",
        ".tools{display:flex;gap:.3rem;align-items:center;margin-bottom:.4rem;color:var(--soft);font-size:.8rem}",
        "button{font:inherit;color:var(--ink);background:var(--panel);border:1px solid var(--rule);border-radius:.3rem;"
        "padding:0 .6rem;cursor:pointer}",
        ".chart{width:100%;height:auto;background:var(--panel);border-radius:.5rem}",
        ".grid{stroke:var(--rule)}.tick{fill:var(--soft);font-size:11px}.mark{stroke:var(--soft);stroke-dasharray:3 3}",
        ".line{fill:none;stroke-width:1.5}.band{fill:var(--soft);opacity:.13}",
        "i.dot{display:inline-block;width:.6rem;height:.6rem;border-radius:50%;margin:0 .3rem}",
        "circle.regular{fill:var(--checkpoint)}circle.emergency{fill:var(--restart)}circle.bad{fill:var(--rework)}",
        "i.regular{background:var(--checkpoint)}i.emergency{background:var(--restart)}i.bad{background:var(--rework)}",
        *(
            f".line.l{number}{{stroke:var(--l{number})}}i.l{number}{{background:var(--l{number})}}"
            for number in range(6)
        ),
        *(f".c-{label}{{fill:var(--{label});background:var(--{label})}}" for label in Label),
        "footer{color:var(--soft);font-size:.8rem;margin-top:2rem}",
        "@media (max-width:34rem){.row{grid-template-columns:6.5rem 1fr}.tick{font-size:16px}"
        ".figures{grid-template-columns:1fr 1fr}.line{stroke-width:2.5}}",
        f"@media print{{:root{{{_LIGHT}}}body{{max-width:none;padding:0}}.tools{{display:none}}"
        "*{print-color-adjust:exact;-webkit-print-color-adjust:exact}.chart,table,.timeline{break-inside:avoid}"
        "h2{break-after:avoid}.legend{break-before:avoid}"
        ".scroll{overflow:visible}td,th{padding:.15rem .35rem;font-size:.8rem}}",
    ]
)

SCRIPT = """
for (const timeline of document.querySelectorAll('.timeline')) {
  const rows = [...timeline.querySelectorAll('svg')], labels = timeline.querySelectorAll('.axis div span');
  const whole = Number(timeline.dataset.seconds), first = labels[0].textContent;
  let from = 0, width = 1000;
  const said = s =>
    s < 120 ? s.toFixed(1) + ' s' : s < 7200 ? (s / 60).toFixed(1) + ' min' : (s / 3600).toFixed(1) + ' h';
  const show = () => {
    width = Math.min(1000, Math.max(width, 0.5));
    from = Math.min(Math.max(from, 0), 1000 - width);
    for (const svg of rows) svg.setAttribute('viewBox', `${from} 0 ${width} 20`);
    labels[0].textContent = from > 0 ? '+' + said(from / 1000 * whole) : first;
    labels[1].textContent = '+' + said((from + width) / 1000 * whole);
  };
  const zoom = (factor, at) => {
    const kept = from + at * width;
    width = Math.min(1000, width / factor);
    from = kept - at * width;
    show();
  };
  for (const button of timeline.querySelectorAll('button'))
    button.onclick = () => {
      const by = Number(button.dataset.zoom);
      if (by) return zoom(by, 0.5);
      [from, width] = [0, 1000];
      show();
    };
  for (const svg of rows) {
    svg.addEventListener('wheel', event => {
      event.preventDefault();
      const box = svg.getBoundingClientRect();
      zoom(event.deltaY < 0 ? 1.25 : 0.8, (event.clientX - box.left) / box.width);
    }, {passive: false});
    svg.onpointerdown = down => {
      const start = from, scale = width / svg.getBoundingClientRect().width;
      svg.setPointerCapture(down.pointerId);
      svg.onpointermove = move => { from = start - (move.clientX - down.clientX) * scale; show(); };
      svg.onpointerup = svg.onpointercancel = () => { svg.onpointermove = null; };
    };
  }
}
"""
