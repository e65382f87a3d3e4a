"""Charts: the same numbers in the picture, in the CSV and under the pointer, whatever the texts say."""

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from qdq.report import charts, html
from qdq.report.charts import Chart, Image, Mark, Panel, Series

HOSTILE = "</script><img src=x onerror=alert(1)> & $\\frac{1}{$ _ 漢字"


def example(name: str = "one") -> Chart:
    line = Series(name, [0, 1, 2], [1.0, float("nan"), 3.0], "blue", "line", [0.5, 1, 2], [1.5, 2, 4])
    bars = Series("bars", [0, 1, 2], [4, 5], "grey", "filled")
    rows = Series("rows", [0.25, 0.5], [0, 1], "green", "interval", [0.1, 0.4], [0.4, 0.6])
    image = Image(np.array([[0.0, 1.0], [0.5, 0.25]]), (0, 2, 0, 2))
    return Chart(
        "example",
        name,
        name,
        [
            Panel(name, name, name, [line, bars], [Mark("y", 2.0, name)]),
            Panel("rows", "x", "", [rows], categories=[name, "_second\nline"]),
            Panel("image", "x", "y", image=image),
        ],
    )


def test_csv_has_every_number() -> None:
    rows = list(csv.DictReader(io.StringIO(charts.to_csv(example()))))
    line = [row for row in rows if row["series"] == "one" and row["x"]]
    assert [(row["x"], row["y"], row["low"], row["high"]) for row in line] == [
        ("0", "1", "0.5", "1.5"),
        ("1", "", "1", "2"),
        ("2", "3", "2", "4"),
    ]
    bins = [(row["x"], row["x_end"], row["y"]) for row in rows if row["series"] == "bars"]
    assert bins == [("0", "1", "4"), ("1", "2", "5")]
    assert [row["y"] for row in rows if row["series"] == "rows"] == ["one", "_second line"]
    assert sum(row["panel"] == "image" for row in rows) == 4


def test_a_name_is_not_a_formula() -> None:
    assert charts.cell("=HYPERLINK(1)") == "'=HYPERLINK(1)"
    assert charts.cell("hopper\nmedium") == "hopper medium"


def test_hover_values_are_the_numbers_of_the_chart() -> None:
    svg, hover = charts.inline(example())
    first, second = hover
    assert first["series"][0]["y"] == [1.0, None, 3.0]
    assert second["categories"] == ["one", "_second\nline"]
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())  # type: ignore[union-attr]
    for panel in hover:
        left, top, right, bottom = panel["box"]
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


def test_the_pixel_of_a_point_is_where_the_box_says() -> None:
    """A marker drawn at (3, 30) lies at the place that box and limits give for it."""
    chart = Chart(
        "p",
        "",
        "",
        [
            Panel(
                "",
                "x",
                "y",
                [Series("s", [3.0], [30.0], "blue", "points", width=4)],
                x_limits=(0, 10),
                y_limits=(0, 100),
            )
        ],
    )
    svg, hover = charts.inline(chart)
    left, top, right, bottom = hover[0]["box"]
    assert hover[0]["x"]["limits"] == [0, 10]
    place = re.search(r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="fill: var\(--blue\)', svg)
    assert place is not None
    assert float(place.group(1)) == pytest.approx(left + 0.3 * (right - left), abs=0.2)
    assert float(place.group(2)) == pytest.approx(bottom - 0.3 * (bottom - top), abs=0.2)


def test_hostile_texts_are_harmless_everywhere(tmp_path: Path) -> None:
    chart = example(HOSTILE)
    page = html.document(HOSTILE, html.figure(chart, "figures"), script=False)
    assert "<img" not in page
    assert page.count("<script") == 1  # the data of the figure, which the browser does not run
    assert page.count("</script>") == 1
    paths = charts.save(chart, tmp_path)
    assert [path.name for path in paths] == ["example.png", "example.svg", "example.csv"]
    ElementTree.parse(paths[1])  # well-formed
    table = html.table("t", [(HOSTILE, HOSTILE)], [[html.text(HOSTILE)]])
    assert "<img" not in table


def test_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    one, two = charts.save(example(), tmp_path / "a"), charts.save(example(), tmp_path / "b")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_every_colour_is_a_variable_of_the_page() -> None:
    sheet = html.asset("page.css")
    light = sheet[: sheet.index("@media")]
    for name, colour in charts.COLOURS.items():
        assert f"--{name}: {colour};" in light
        assert len(re.findall(rf"--{name}: ", sheet)) == 3  # light, dark by the system, dark by the button
    svg, _ = charts.inline(example())
    assert not set(re.findall(r"#[0-9a-f]{6}", svg)) & set(charts.COLOURS.values())


@pytest.mark.parametrize(("value", "text"), [(500, "500"), (5000, "5k"), (1e6, "1M"), (1.5e6, "1.5M")])
def test_short_numbers(value: float, text: str) -> None:
    assert charts.short_number(value) == text
