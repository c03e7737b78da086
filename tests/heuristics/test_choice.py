import dataclasses

import entries
import pytest
from msgspec import structs
from quick_configs import quick_configs

from fastsgemm import rungs
from fastsgemm.device import DeviceInfo
from fastsgemm.errors import ConfigError
from fastsgemm.geometry.grid import MAX_BLOCKS
from fastsgemm.heuristics import database
from fastsgemm.heuristics.alternatives import Search
from fastsgemm.heuristics.choice import EXACT, NEAREST, PREDICTED, choose_config
from fastsgemm.heuristics.curve_problems import problems_of
from fastsgemm.heuristics.database_entries import Content, HandPicked, Measured, Published, points_of
from fastsgemm.heuristics.device_database import DeviceDatabase, device_database, knows
from fastsgemm.problem import Problem
from fastsgemm.request import Request

RUNG = rungs.find("warptiled")
DEVICE = DeviceInfo("Fake 9000", "sm_90", 232448, 132)
OTHER = structs.replace(DEVICE, name="Fake 8000", multiprocessors=114)
PROBLEM = Problem(1024, 1024, 1024)
QUICK = {rung: quick_configs(rung) for rung in ("pipelined", "skinny", "warptiled")}
DEFAULT = QUICK["pipelined"][0]  # of a default rung
BIG, SMALL, THIRD, FOURTH = (QUICK["warptiled"][place] for place in (0, 15, 5, 9))

FEW_ROWS = QUICK["skinny"][0]  # before a test empties the database


def record(config, problem=PROBLEM, device="Fake 9000", ms=0.5, rung="warptiled"):
    return entries.measured(rung, config, problem, ms, device=device)


def published(config, problem, device="Fake 9000"):
    return entries.published("warptiled", config, problem, device)


def curve(config, scale=1.0, device="Fake 9000"):
    def ms(problem):
        return 0.004 + scale * 1e-8 * problem.M * problem.N * problem.K / 1000

    points = points_of((problem, ms(problem)) for problem in problems_of(config, 2, 132).problems())
    return entries.curve("warptiled", config, 2, points, device)


@pytest.fixture
def shipped(tuning_folder):
    """Return a function that ships records and curves."""

    def ship(*records, curves=(), arch="sm_90"):
        database.write(tuning_folder / f"{arch}.json", Content(arch, 232448, records, tuple(curves)))
        database.forget()

    ship(published(FOURTH, None, None), arch="generic")
    return ship


def own(*records, curves=()):
    database.save(Content("sm_90", 232448, records, tuple(curves)))
    database.forget()


def pick(problem=PROBLEM, device_info=DEVICE, only=None):
    return choose_config(device_info, RUNG, problem, only)


def file_of(found):
    return database.origin_of(found.evidence, "sm_90")[0]


def options(problem=PROBLEM):
    """The configs with a predicted time, the quickest first."""
    return [one.config for one in Search(device_database(DEVICE), Request(RUNG)).ranking(problem)]


def test_a_tuned_problem_gets_its_record(shipped):
    shipped(record(BIG), record(SMALL, Problem(64, 64, 64)), curves=[curve(THIRD)])
    assert (pick().config, pick().rule, pick().ms) == (BIG, EXACT, 0.5)
    assert pick(Problem(64, 64, 64)).config == SMALL
    assert options() == [THIRD]


def test_an_untuned_problem_gets_the_least_prediction(shipped):
    shipped(record(BIG), curves=[curve(THIRD, 2.0), curve(SMALL, 1.0)])
    found = pick(Problem(1000, 1000, 1000))
    assert (found.config, found.rule) == (SMALL, PREDICTED)
    assert options(Problem(1000, 1000, 1000)) == [SMALL, THIRD]


def test_of_configs_that_are_about_as_fast_the_first_one_is_used(shipped):
    """So problems of similar shapes share kernels."""
    problem, other = Problem(1000, 1000, 1000), dataclasses.replace(BIG, GROUP_M=4)
    for slow, wins in ((1.005, True), (1.2, False)):
        shipped(curves=[curve(other, slow), curve(BIG, 1.0)])
        assert options(problem) == [BIG, other]
        assert pick(problem).config == (other if wins else BIG)
        shipped(curves=[curve(BIG, 1.0), curve(other, slow)])
        assert pick(problem).config == BIG


def test_another_layout_is_another_problem(shipped):
    shipped(record(BIG), curves=[curve(THIRD)])
    assert pick(dataclasses.replace(PROBLEM, layout="TN")).config == THIRD


def test_another_batch_is_another_problem(shipped):
    eight = dataclasses.replace(PROBLEM, batch=8)
    shipped(record(BIG), record(SMALL, eight), curves=[curve(THIRD)])
    assert [(pick(one).config, pick(one).rule) for one in (PROBLEM, eight)] == [
        (BIG, EXACT), (SMALL, EXACT)
    ]  # fmt: skip
    for count in (2, 7, 9):
        other = pick(dataclasses.replace(PROBLEM, batch=count))
        assert (other.config, other.rule) == (THIRD, PREDICTED)


def test_a_batch_is_near_batches_of_its_size_and_single_products(shipped):
    """Not batches of another size, however near."""
    eight, seven = (dataclasses.replace(PROBLEM, batch=count) for count in (8, 7))
    shipped(published(SMALL, eight))
    assert (pick(eight).config, pick(eight).rule) == (SMALL, EXACT)
    near = pick(dataclasses.replace(eight, K=1000))
    assert (near.config, near.rule) == (SMALL, NEAREST)
    for other in (seven, PROBLEM):
        assert (pick(other).config, file_of(pick(other))) == (FOURTH, "generic")
    shipped(published(SMALL, eight), published(BIG, Problem(64, 64, 64)))
    assert pick(seven).config == pick(PROBLEM).config == BIG
    assert pick(dataclasses.replace(eight, K=1000)).config == SMALL  # 12 octaves less than one of 64 x 64 x 64
    assert pick(dataclasses.replace(eight, M=64, N=64, K=64)).config == BIG


def test_without_times_the_nearest_record_serves(shipped):
    shipped(published(BIG, Problem(4096, 4096, 4096)), published(SMALL, Problem(128, 128, 128)))
    assert pick(Problem(2000, 2000, 5000)).config == BIG
    assert pick(Problem(100, 200, 300)).config == SMALL
    assert pick().rule == NEAREST and pick().ms is None


def test_near_is_counted_in_octaves_and_layouts_come_first(shipped):
    shipped(published(BIG, Problem(8192, 8192, 8192)), published(SMALL, Problem(64, 64, 64)))
    assert pick(Problem(512, 512, 512)).config == SMALL
    shipped(published(BIG, PROBLEM), published(SMALL, Problem(1, 1, 1, "TN")))
    assert pick(Problem(1024, 1024, 1025, "TN")).config == SMALL


def test_the_users_record_comes_before_the_shipped_one(shipped):
    shipped(record(BIG))
    own(record(SMALL))
    assert pick().config == SMALL and database.origin_of(pick().evidence, "sm_90")[1]


def test_the_users_curve_comes_before_the_shipped_one_of_the_same_config(shipped):
    shipped(curves=[curve(BIG, 1.0), curve(SMALL, 2.0)])
    assert pick().config == BIG
    own(curves=[curve(BIG, 4.0)])
    assert pick().config == SMALL


def test_this_device_comes_before_its_architecture_before_generic(shipped):
    shipped(record(BIG, device="Fake 8000"), record(SMALL))
    assert pick().config == SMALL
    shipped(record(BIG, device="Fake 8000"))
    assert pick().config == BIG
    shipped()
    assert (pick().config, file_of(pick())) == (FOURTH, "generic")


def test_what_is_shipped_for_this_device_comes_before_the_users_own_of_another(shipped):
    shipped(record(BIG))
    own(record(SMALL, device="Fake 8000"))
    assert pick().config == BIG


def test_another_device_of_the_architecture_uses_its_curves_with_its_own_multiprocessors(shipped):
    shipped(curves=[curve(BIG), curve(SMALL)])
    here, there = pick(), pick(device_info=OTHER)
    assert there.rule == PREDICTED and there.evidence.device == "Fake 9000"
    assert there.ms > here.ms


def test_one_tuned_problem_does_not_hide_the_curves_of_the_architecture(shipped):
    shipped(curves=[curve(BIG, device="Fake 8000")])
    own(record(SMALL))
    assert pick().config == SMALL
    assert pick(Problem(2000, 2000, 2000)).config == BIG


def test_one_side_can_be_left_out(shipped):
    shipped(record(BIG))
    own(record(SMALL))
    assert pick(only="shipped").config == BIG
    assert pick(only="user").config == SMALL
    shipped()
    assert pick(only="shipped").config == FOURTH


def test_what_is_illegal_on_this_device_is_passed_over(shipped):
    deep = dataclasses.replace(BIG, BK=32)  # 32 KB
    shipped(record(deep), record(SMALL, Problem(64, 64, 64)))
    assert pick().config == deep
    with pytest.warns(RuntimeWarning, match="warptiled for 1024,1024,1024 is passed over: shared memory of a block"):
        assert pick(device_info=structs.replace(DEVICE, shared_limit=16 * 1024)).config == SMALL


def test_where_nothing_is_legal_the_error_says_so(shipped):
    shipped(record(BIG))
    with pytest.warns(RuntimeWarning, match="passed over"), pytest.raises(ConfigError, match="with 1024 bytes"):
        pick(device_info=structs.replace(DEVICE, shared_limit=1024))


def test_a_curve_without_its_points_is_one_warning_and_a_miss(shipped):
    broken = structs.replace(curve(BIG), points=points_of([*curve(BIG).times.items()][2:]))
    shipped(curves=[broken, curve(SMALL, 9.0)])
    with pytest.warns(RuntimeWarning, match="left out") as caught:
        found = [pick(Problem(n, n, n)).config for n in (100, 200, 300)]
    assert found == [SMALL] * 3 and len(caught) == 1


def test_a_grid_that_is_too_large_is_no_option(shipped):
    shipped(curves=[curve(SMALL, 0.1), curve(BIG, 9.0)])
    extent = 32 * int(MAX_BLOCKS**0.5 + 2)
    assert options(Problem(extent, extent, 64)) == [BIG]


def test_a_damaged_database_still_gives_generic_constants(shipped, tuning_folder):
    (tuning_folder / "sm_90.json").write_text("{")
    database.forget()
    with pytest.warns(RuntimeWarning, match="left out"):
        assert pick().config == FOURTH


def test_the_second_question_reads_and_computes_nothing(shipped, monkeypatch):
    shipped(curves=[curve(BIG)])
    first = pick()
    with monkeypatch.context() as patch:
        patch.setattr(database, "load", None)
        patch.setattr(DeviceDatabase, "model", None)
        assert pick() is first


def test_a_new_problem_is_answered_without_reading(shipped, monkeypatch):
    shipped(curves=[curve(config) for config in QUICK["warptiled"]])
    pick()
    with monkeypatch.context() as patch:
        patch.setattr(database, "load", None)
        for n in range(3):
            pick(Problem(1000 + n, 1000, 1000))


def test_a_device_is_known_by_its_architecture(shipped):
    shipped(record(BIG))
    assert not knows(DEVICE)  # rung 8 is none of the rungs that `sgemm` uses by default
    shipped(record(DEFAULT, rung="pipelined"))
    assert knows(DEVICE) and knows(OTHER)
    assert not knows(structs.replace(DEVICE, arch="sm_42"))


# Without a rung: rung 9 or, where C is narrow, rung 10

NARROW, SQUARE = Problem(16, 4096, 4096), Problem(4096, 4096, 4096)
OF = {"pipelined": QUICK["pipelined"][3], "skinny": QUICK["skinny"][8]}


def of(rung, problem=NARROW, ms=0.5, kind=Measured):
    if kind is Measured:
        return entries.measured(rung, OF[rung], problem, ms)
    return entries.published(rung, OF[rung], problem, kind=kind)


def curve_of(rung, ms):
    config = OF[rung]
    points = points_of((problem, ms) for problem in problems_of(config, 2, 132).problems())
    return entries.curve(rung, config, 2, points)


@pytest.fixture
def defaults(tuning_folder):
    """Return a function that ships records and curves of the default rungs, beside generic records of both."""

    def ship(*records, curves=()):
        generic = tuple(of(rung, None, kind=HandPicked) for rung in OF)
        database.write(tuning_folder / "generic.json", Content("generic", 232448, generic))
        database.write(tuning_folder / "sm_90.json", Content("sm_90", 232448, records, tuple(curves)))
        database.forget()

    return ship


def picked(problem=NARROW):
    found = choose_config(DEVICE, None, problem)
    named = choose_config(DEVICE, found.rung, problem)
    assert (found.rung, found.config, found.rule, found.ms) == (named.rung, named.config, named.rule, named.ms)
    return found.rung.name, found.rule


def test_without_times_a_narrow_result_gets_the_narrow_rung(defaults):
    defaults()
    assert picked() == ("skinny", NEAREST)
    assert picked(Problem(4096, 32, 64, "TT")) == ("skinny", NEAREST)
    assert picked(Problem(33, 4096, 64)) == picked(SQUARE) == ("pipelined", NEAREST)


@pytest.mark.parametrize(("slow", "fast"), [("pipelined", "skinny"), ("skinny", "pipelined")])
def test_the_less_time_wins_measured_or_predicted(defaults, slow, fast):
    defaults(of(slow, ms=0.5), of(fast, ms=0.4))
    assert picked() == (fast, EXACT)
    defaults(curves=[curve_of(slow, 0.5), curve_of(fast, 0.4)])
    assert picked() == (fast, PREDICTED)


@pytest.mark.parametrize(("known", "other"), [("pipelined", "skinny"), ("skinny", "pipelined")])
def test_what_is_measured_beats_what_is_predicted_beats_what_is_near(defaults, known, other):
    defaults(of(known, ms=9.0), curves=[curve_of(other, 0.1)])
    assert picked() == (known, EXACT)
    defaults(of(other, SQUARE, kind=Published), curves=[curve_of(known, 9.0)])
    assert picked() == (known, PREDICTED)
    defaults(of(known, ms=9.0), of(other, kind=Published))
    assert picked() == (known, EXACT)  # one with a time beats one without


def test_the_narrow_rung_is_for_narrow_results_however_fast(defaults):
    curves = [curve_of("pipelined", 9.0), curve_of("skinny", 0.1)]
    defaults(of("skinny", SQUARE, ms=0.1), curves=curves)
    assert picked(SQUARE) == ("pipelined", PREDICTED)
    assert picked(Problem(32, 33, 50))[0] == picked(Problem(33, 32, 50))[0] == "skinny"
    assert picked(Problem(33, 33, 50))[0] == "pipelined"


def test_a_record_picked_by_hand_is_near_and_never_exact(defaults):
    defaults(of("skinny", kind=HandPicked), curves=[curve_of("pipelined", 9.0)])
    assert picked() == ("pipelined", PREDICTED)
    assert choose_config(DEVICE, rungs.find("skinny"), NARROW).rule == NEAREST


def test_a_record_of_no_problem_is_further_than_any_of_a_problem(defaults):
    far = entries.published("skinny", FEW_ROWS, Problem(1, 1, 1, "TT"))
    defaults(of("skinny", None, kind=Published), far)
    assert choose_config(DEVICE, rungs.find("skinny"), NARROW).config == FEW_ROWS
