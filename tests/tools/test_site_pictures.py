"""A picture of a page becomes one for each theme of the site, and keeps its narrow form and its text."""

import pytest

site_pictures = pytest.importorskip("site_pictures", reason="tools/ is part of a checkout only")


def test_a_picture_with_a_narrow_form_becomes_two_of_which_each_has_one():
    shown = site_pictures.in_both_themes(f"before\n{site_pictures.markdown('x', 'what it says')}\nafter")
    says = 'alt="what it says"></picture>'
    assert shown == (
        'before\n<div class="figure">'
        '<picture class="only-light"><source media="(max-width: 600px)" srcset="figures/x-narrow-light.svg">'
        f'<img src="figures/x-light.svg" {says}'
        '<picture class="only-dark"><source media="(max-width: 600px)" srcset="figures/x-narrow-dark.svg">'
        f'<img src="figures/x-dark.svg" {says}</div>\nafter'
    )


def test_a_picture_of_one_form_has_no_source():
    page = (
        '<picture>\n<source media="(prefers-color-scheme: dark)" srcset="a.svg">\n<img src="b.svg" alt="c">\n</picture>'
    )
    assert site_pictures.in_both_themes(page) == (
        '<div class="figure"><picture class="only-light"><img src="b.svg" alt="c"></picture>'
        '<picture class="only-dark"><img src="a.svg" alt="c"></picture></div>'
    )
