"""Draw a chart of horizontal bars as SVG, for tests/bench/bars and tests/bench/run."""

import functools
import html
from collections import namedtuple

# A bar of the chart. share: length of the bar. A bar of length 1 reaches the line of comparison.
# least, most: ends of the whisker, or None. note: text to the right of the bar.
Bar = namedtuple("Bar", "label share colour note least most", defaults=(None, None))

GREEN, RED, BLUE, GREY = "#3a7d44", "#b03a2e", "#2e6da4", "#9a9a9a"
LEFT, SCALE, ROW, MOST = 560, 160, 16, 2.0
escape = functools.partial(html.escape, quote=False)


def svg(bars, title):
    """Draw a list of bars. An entry None makes a gap between bars.

    A bar longer than MOST is cut off at MOST, and its note also has the true length.
    """
    width, bottom = LEFT + int(MOST * SCALE) + 160, 30 + ROW * len(bars)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 10}" '
        'font-family="sans-serif" font-size="10">',
        f'<text x="{LEFT + SCALE}" y="14" text-anchor="middle">{escape(title)}</text>',
    ]
    for i, bar in enumerate(bars):
        if bar is None:
            continue
        y, length = 24 + i * ROW, min(bar.share, MOST) * SCALE
        note = f"{bar.note} (cut: {bar.share:.2f})" if bar.share > MOST else bar.note
        end = length
        out.append(
            f'<text x="{LEFT - 6}" y="{y + 10}" text-anchor="end">{escape(bar.label)}</text>'
        )
        out.append(
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{ROW - 4}" '
            f'fill="{bar.colour}"/>'
        )
        if bar.least is not None and bar.most < MOST:
            a, end = bar.least * SCALE, bar.most * SCALE
            out.append(
                f'<path d="M{LEFT + a:.1f} {y + 6}H{LEFT + end:.1f}M{LEFT + a:.1f} '
                f'{y + 3}v6M{LEFT + end:.1f} {y + 3}v6" '
                'stroke="black"/>'
            )
        out.append(
            f'<text x="{LEFT + max(length, end) + 4:.1f}" y="{y + 10}">{escape(note)}</text>'
        )
    x = LEFT + SCALE
    out.append(f'<line x1="{x}" y1="18" x2="{x}" y2="{bottom}" stroke="black"/></svg>')
    return "\n".join(out) + "\n"
