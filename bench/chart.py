"""Curves over time above one another, with marks for what was done when, as an SVG. Used by soak.py; standard library only."""

import html
import math

WIDTH, LEFT, RIGHT, PANEL, GAP, LANE = 1100, 110, 30, 150, 44, 18
COLOURS = ("#1f5fa8", "#c23b22", "#2e7d4f", "#8a5a00")
MARK_COLOURS = {"kill": "#c23b22", "restart": "#8a5a00", "hang": "#6a3d9a", "flood": "#1f5fa8", "reload": "#2e7d4f"}


def round_step(span, most):
    """The smallest of 1, 2 and 5 times a power of ten that cuts a span into at most so many parts."""
    raw = max(span, 1e-9) / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= raw)


def text(x, y, words, anchor="start", size=12, colour="#333", bold=False):
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{weight}>{html.escape(words)}</text>'


def line(x1, y1, x2, y2, colour="#ddd", width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def panel(top, title, curves, across):
    """One diagram. `curves`: name -> [(second, value)]; the scale begins at 0."""
    highest = max([value for points in curves.values() for _, value in points] or [1]) or 1
    step = round_step(highest * 1.05, 5)
    ceiling = step * math.ceil(highest * 1.05 / step)
    up = lambda value: top + PANEL - value / ceiling * PANEL
    parts = [text(LEFT, top - 8, title, bold=True)]
    for number in range(round(ceiling / step) + 1):
        parts += [line(LEFT, up(number * step), WIDTH - RIGHT, up(number * step)),
                  text(LEFT - 8, up(number * step) + 4, f"{number * step:g}", "end")]
    right = WIDTH - RIGHT
    for place, (name, points) in enumerate(curves.items()):
        path = " ".join(f"{across(second):.1f},{up(value):.1f}" for second, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[place]}" stroke-width="1.5"/>')
        parts.append(text(right, top - 8, name, "end", colour=COLOURS[place]))
        right -= 8 * len(name) + 24
    return parts + [line(LEFT, top, LEFT, top + PANEL, "#333"), line(LEFT, top + PANEL, WIDTH - RIGHT, top + PANEL, "#333")]


def draw(path, title, panels, marks, seconds):
    """Writes the picture. `panels`: [(title with unit, curves)]; `marks`: [(kind, begin, end)], in seconds."""
    across = lambda second: LEFT + min(max(second, 0), seconds) / seconds * (WIDTH - LEFT - RIGHT)
    kinds = list(dict.fromkeys(kind for kind, _, _ in marks))
    lanes = 62
    first = lanes + len(kinds) * LANE + GAP
    bottom = first + len(panels) * (PANEL + GAP) - GAP
    parts = [text(LEFT, 26, title, size=16, bold=True), text(LEFT, 46, "what was done to the fleet, and for how long:", colour="#666")]
    for row, kind in enumerate(kinds):
        middle, colour = lanes + row * LANE + LANE / 2, MARK_COLOURS.get(kind, "#666")
        parts += [text(LEFT - 8, middle + 4, kind, "end", colour=colour), line(LEFT, middle, WIDTH - RIGHT, middle, "#eee")]
        for _, begin, end in (mark for mark in marks if mark[0] == kind):
            width = max(across(end) - across(begin), 2)
            parts.append(f'<rect x="{across(begin):.1f}" y="{middle - 6}" width="{width:.1f}" height="12" fill="{colour}"/>')
    minute = seconds > 180
    step = round_step(seconds / (60 if minute else 1), 10)
    for number in range(int(seconds / (60 if minute else 1) / step + 1e-6) + 1):
        x = across(number * step * (60 if minute else 1))
        parts += [line(x, lanes, x, bottom, "#f0f0f0"), text(x, bottom + 18, f"{number * step:g}", "middle")]
    for place, (name, curves) in enumerate(panels):
        parts += panel(first + place * (PANEL + GAP), name, curves, across)
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 38, "minutes" if minute else "seconds", "middle"))
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 52}" font-family="sans-serif">'
                    f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n')
