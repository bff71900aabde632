"""The drawings of pages: coordinates inside the axes, round ticks, marks, and a timeline."""

import pytest

from stackyard.report.chart import difference_chart, line_chart, timeline


def points(line):
    return [tuple(float(v) for v in p.split(",")) for p in line["points"].split()]


def test_a_falling_loss_goes_down_and_to_the_right_inside_the_axes():
    found = line_chart({"a": [(1, 3.0), (2, 2.0), (4, 1.0)]}, "loss")
    (line,) = found["lines"]
    xs, ys = zip(*points(line), strict=True)
    assert list(xs) == sorted(xs) and list(ys) == sorted(ys)
    assert xs[-1] == found["right"]
    assert found["top"] <= min(ys) and max(ys) <= found["bottom"]


def test_ticks_are_round_numbers_within_the_axes():
    found = line_chart({"a": [(1, 3.0), (60, 0.9)]}, "loss")
    assert [tick["label"] for tick in found["x_ticks"]] == ["0", "10", "20", "30", "40", "50", "60"]
    assert [tick["label"] for tick in found["y_ticks"]] == ["1", "1.5", "2", "2.5", "3"]
    assert all(found["top"] <= tick["at"] <= found["bottom"] for tick in found["y_ticks"])


@pytest.mark.parametrize(
    "curves",
    [
        {},
        {"a": []},
        {"a": [(1, 2.0)]},
        {"a": [(1, 2.0), (2, 2.0)]},
        {"a": [(1, 0.0)]},
        {"a": [(1, -1.0), (2, -3.0)]},
        {"a": [(1, 1e-9), (2, 1e9)]},
    ],
)
def test_any_curves_can_be_drawn(curves):
    found = line_chart(curves, "loss")
    assert len(found["lines"]) == len(curves)
    assert found["x_ticks"] and found["y_ticks"]


def test_lines_on_each_other_stay_visible():
    same = [(1, 2.0), (2, 1.0)]
    widths = [
        line["width"] for line in line_chart({str(n): same for n in range(4)}, "loss")["lines"]
    ]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 4


def test_large_numbers_have_separators():
    found = line_chart({"a": [(1, 150_000.0), (12_000, 160_000.0)]}, "tokens a second")
    assert found["x_ticks"][-1]["label"] == "12,000"
    assert "155,000" in [tick["label"] for tick in found["y_ticks"]]


def test_marks_stand_at_their_update_and_their_words_inside_the_drawing():
    curve = [(1, 3.0), (40, 1.0)]
    found = line_chart({"a": curve}, "loss", [(21, "resumed"), (45, "killed")])
    resumed, killed = found["marks"]
    assert found["left"] < resumed["at"] < killed["at"] == found["right"]
    assert found["x_ticks"][-1]["label"] == "40"
    assert (resumed["left"], killed["left"]) == (False, True)


def gaps(first, second, bound=1e-3):
    curves = {"one": list(enumerate(first)), "two": list(enumerate(second))}
    return difference_chart(curves, {"two": "one"}, {bound: "at most"}, "difference")


def test_equal_curves_lie_on_the_lowest_tick():
    found = gaps([3.0, 2.0], [3.0, 2.0])
    (line,) = found["lines"]
    assert {y for _, y in points(line)} == {found["bottom"]} == {found["y_ticks"][0]["at"]}
    assert found["y_ticks"][0]["label"] == "0"


def test_a_difference_over_the_bound_lies_above_its_line():
    found = gaps([3.0, 2.0, 1.0], [3.0, 2.0 + 1e-5, 1.1])
    (line,) = found["lines"]
    equal, small, large = (y for _, y in points(line))
    assert found["top"] <= large < found["bounds"][0]["at"] < small < equal == found["bottom"]
    assert found["bounds"][0]["label"] == "at most"


def test_only_updates_that_both_curves_have_are_compared():
    curves = {"one": [(1, 3.0), (2, 2.0)], "two": [(2, 2.0), (3, 1.0)]}
    found = difference_chart(curves, {"two": "one"}, {1e-3: "at most"}, "difference")
    assert [len(points(line)) for line in found["lines"]] == [1]


def test_phases_that_overlap_overlap_in_the_timeline():
    rows = timeline([
        {"name": "a", "seconds": 4.0, "at": 0.0}, {"name": "b", "seconds": 6.0, "at": 2.0},
    ])  # fmt: skip
    assert [(row["start"], row["percent"]) for row in rows] == [(0, 50), (25, 75)]


def test_phases_without_a_start_follow_each_other():
    rows = timeline([{"name": "a", "seconds": 1.0}, {"name": "b", "seconds": 3.0}])
    assert [(row["start"], row["percent"], row["at"]) for row in rows] == [(0, 25, 0), (25, 75, 1)]
    assert timeline([]) == []
    assert timeline([{"name": "a", "seconds": 0.0}])[0]["percent"] == 0
