"""Numbers as texts."""

from closure_kmeans.explorer.rendering import compact, pages, percent, rounded


def test_how_numbers_are_written():
    assert [rounded(value) for value in (203, 0.25, 999.96, 57222.4)] == ["203.0", "0.2500", "1,000", "57,222"]
    assert [percent(value) for value in (1, 0.0996, 1.2e-5, 1e-17)] == ["100 %", "10 %", "0.0012 %", "0 %"]
    assert [compact(value) for value in (0.5, 250, 5000, 62_000, 1.5e6)] == ["0.5", "250", "5K", "62K", "1.5M"]


def test_offered_pages():
    assert pages(1, 1) == [1]
    assert pages(5, 9) == [1, None, 3, 4, 5, 6, 7, None, 9]
    assert pages(1, 3) == [1, 2, 3]
