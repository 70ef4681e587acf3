"""What all charts look like: the colours of their parts, and the layout around them.

Colours are written as CSS variables (``var(--accent)``); the page's script replaces them by the
values of the theme in use, so that a chart follows light, dark and print.
"""

from __future__ import annotations

import re
from typing import Any

from analyzer.report.charts import Role

Figure = dict[str, Any]

DOMINATED = "dominated"
"""What configurations are called that another one beats in everything."""

NAMED_ROLES: tuple[Role, ...] = ("recommended", "closest", "baseline")
"""Of single configurations, which charts tell by name."""

# Points that are told in words.
_TOLD_MAX = 40

ROLE_COLOURS: dict[Role, str] = {
    "recommended": "var(--accent)",
    "closest": "var(--accent)",
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


def text_of(figure: Figure) -> str:
    """What a figure shows, for those who do not see it: what its points show on hover."""
    traces = [trace for trace in figure["data"] if trace.get("mode") != "lines"]
    hovers = [text for t in traces if t.get("name") != DOMINATED for text in t["customdata"]]
    told = [re.sub(r"<[^>]*>", "", text.replace("<br>", ", ")) for text in hovers[:_TOLD_MAX]]
    return "; ".join(told) + (" …" if len(hovers) > _TOLD_MAX else "")
