"""The choices for a stored sample of problems, so that an unintended change of a choice is seen.

``choices.json`` is written by ``python tests/support/write_choices.py``; run it after an intended change of the
database, the cost model or the rule, and read the difference before you commit it.
"""

import pytest
from write_choices import line, stored

from fastsgemm.problem import parse

STORED = stored()


def test_the_sample_has_about_a_hundred_problems_of_all_rules():
    assert len(STORED) == 100
    rules = {rule for each in STORED for _, rule, _ in each["choices"].values()}
    assert rules == {"exact", "predicted", "nearest"}


@pytest.mark.parametrize("each", STORED, ids=[each["problem"] for each in STORED])
def test_a_problem_gets_the_config_that_it_got_before(each):
    assert line(parse(each["problem"])) == each
