"""What all charts look like: the colours of their parts, and the layout around them.

Colours are written as CSS variables (``var(--accent)``); the page's script replaces them by the
values of the theme in use, so that a chart follows light, dark and print.
"""

from __future__ import annotations

from typing import Any

from analyzer.report.charts import Role

Figure = dict[str, Any]

ROLE_COLOURS: dict[Role, str] = {
    "recommended": "var(--accent)",
    "baseline": "var(--baseline)",
    "front": "var(--front)",
    "other": "var(--faint)",
}


def layout_of(**fields: Any) -> dict[str, Any]:
    """The common look: no frame, faint grid, the page's own type and colours."""
    axis = {
        "gridcolor": "var(--grid)",
        "linecolor": "var(--axis)",
        "zerolinecolor": "var(--axis)",
        "tickcolor": "var(--axis)",
        "automargin": True,
    }
    layout: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "var(--font)", "size": 13, "color": "var(--ink-2)"},
        "margin": {"l": 56, "r": 16, "t": 40, "b": 48},
        "hoverlabel": {
            "bgcolor": "var(--panel)",
            "bordercolor": "var(--axis)",
            "font": {"family": "var(--font)", "color": "var(--ink)"},
            "align": "left",
        },
        "dragmode": False,
    }
    layout.update(fields)
    for name in ("xaxis", "yaxis"):
        layout[name] = {**axis, **fields.get(name, {})}
    return layout
