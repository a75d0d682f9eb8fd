from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from rljob_planner.laws import EndlessLaw, LognormalLaw
from rljob_planner.lengths import LengthDistribution


def test_values_are_equally_likely() -> None:
    lengths = LengthDistribution.from_values([4, 1, 1, 10])
    assert lengths.support_tokens.tolist() == [1, 4, 10]
    assert lengths.probabilities.tolist() == [0.5, 0.25, 0.25]
    assert lengths.mean() == 4.0
    assert lengths.second_moment() == (1 + 1 + 16 + 100) / 4
    assert lengths.resident_mean_tokens() == pytest.approx(118 / 4 / 8)
    assert lengths.cap_tokens == 10
    assert [lengths.quantile(p) for p in (0.0, 0.5, 0.51, 0.75, 0.76, 1.0)] == [1, 1, 4, 4, 10, 10]
    assert lengths.survival(np.array([0.0, 1.0, 3.0, 4.0, 10.0])).tolist() == [1.0, 0.5, 0.5, 0.25, 0.0]


def test_lengths_are_whole_at_least_one_and_at_most_the_cap() -> None:
    assert LengthDistribution.from_values([0, 0.4, 2.6, 9], max=5).support_tokens.tolist() == [1, 3, 5]
    lengths = LengthDistribution.lognormal(3, 2.0, 50)
    assert lengths.support_tokens[0] == 1
    assert lengths.support_tokens[-1] == 50
    assert lengths.cumulative[-1] == 1.0


def test_lognormal_is_rounded_and_its_mass_above_the_cap_sits_at_the_cap() -> None:
    lengths = LengthDistribution.lognormal(300, 0.8, 1000)

    def below(x: float) -> float:
        return 0.5 * math.erfc(-math.log(x / 300) / 0.8 / math.sqrt(2))

    at = lengths.support_tokens.tolist().index
    assert lengths.cumulative[at(300)] == pytest.approx(below(300.5))
    assert lengths.probabilities[at(1000)] == pytest.approx(1 - below(999.5))
    assert lengths.quantile(0.5) == 300


def test_lognormal_without_spread_is_one_length() -> None:
    assert LengthDistribution.lognormal(300, 0.0, 1000).support_tokens.tolist() == [300]
    assert LengthDistribution.lognormal(3000, 0.0, 1000).support_tokens.tolist() == [1000]


@pytest.mark.parametrize(
    ("mean", "cv", "cap"),
    [(3000, 1.1, 32768), (100, 0.1, 1000), (900, 0.9, 1024 * 4), (30000, 0.2, 32768), (2000, 2.5, 32768)],
)
def test_mean_and_cv_hold_after_clipping(mean: float, cv: float, cap: int) -> None:
    lengths = LengthDistribution.from_mean_cv(mean, cv, cap)
    assert lengths.mean() == pytest.approx(mean, rel=1e-3)
    assert lengths.cv() == pytest.approx(cv, rel=2e-3)
    assert lengths.support_tokens[-1] <= cap


def test_impossible_mean_and_cv_say_what_is_possible() -> None:
    with pytest.raises(ValueError, match="above max"):
        LengthDistribution.from_mean_cv(2000, 1.0, 1000)
    with pytest.raises(ValueError, match=r"cannot have a cv of 4: write a cv below \d"):
        LengthDistribution.from_mean_cv(3000, 4.0, 32768)
    assert LengthDistribution.from_mean_cv(1000, 0.0, 1000).support_tokens.tolist() == [1000]


def test_quantiles_are_met() -> None:
    lengths = LengthDistribution.from_quantiles({0.5: 900, 0.9: 3000, 0.99: 9000}, 32768)
    assert (lengths.quantile(0.5), lengths.quantile(0.9), lengths.quantile(0.99)) == (900, 3000, 9000)
    half = LengthDistribution.from_quantiles({0.5: 300, 0.8413447460685429: 300 * math.e**0.8}, 4000)
    assert half.mean() == pytest.approx(LengthDistribution.lognormal(300, 0.8, 4000).mean(), rel=1e-6)


def test_histogram_is_uniform_inside_its_bins() -> None:
    lengths = LengthDistribution.from_histogram([(10, 1), (20, 0), (40, 3)])
    assert lengths.mean() == pytest.approx(0.25 * 5 + 0.75 * 30, rel=0.01)
    assert lengths.quantile(0.25) == 10
    assert not np.any((lengths.support_tokens > 10) & (lengths.support_tokens < 20))
    assert lengths.probabilities[lengths.support_tokens == 30] == pytest.approx(0.75 / 20)
    assert lengths.cap_tokens == 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthDistribution.lognormal(-1, 1, 10), "median must be a number above 0"),
        (lambda: LengthDistribution.lognormal(10, math.nan, 10), "sigma"),
        (lambda: LengthDistribution.lognormal(10, 1, 0), "max must be a whole number"),
        (lambda: LengthDistribution.from_mean_cv(10, -1, 100), "cv"),
        (lambda: LengthDistribution.from_quantiles({0.5: 10}, 100), "at least two quantiles"),
        (lambda: LengthDistribution.from_quantiles({0.5: 10, 0.9: 9}, 100), "must be longer"),
        (lambda: LengthDistribution.from_quantiles({0.5: 10, 1.5: 90}, 100), "not a quantile"),
        (lambda: LengthDistribution.from_quantiles({0.5: 10, 0.9: 900}, 100), "above max"),
        (lambda: LengthDistribution.from_histogram([]), "empty"),
        (lambda: LengthDistribution.from_histogram([(10, 1), (5, 1)]), "must rise"),
        (lambda: LengthDistribution.from_histogram([(10, 0)]), "all counts"),
        (lambda: LengthDistribution.from_histogram([(10, -1)]), "at least 0"),
        (lambda: LengthDistribution.from_values([]), "no values"),
        (lambda: LengthDistribution.from_values([math.inf]), "every value"),
        (lambda: LengthDistribution.lognormal(10, 1, 100, cap_mass=1.5), "cap_mass is the share"),
        (lambda: LengthDistribution.mixture([], 100), "at least one part"),
        (lambda: LengthDistribution.mixture([(0.0, EndlessLaw())], 100), "weight above 0"),
        (lambda: LengthDistribution.mixture([(-1.0, EndlessLaw())], 100), "at least 0, not -1"),
        (lambda: LengthDistribution.mixture([(1.0, EndlessLaw())], 0), "max must be a whole number"),
        (lambda: LengthDistribution.from_values([3]).scaled(0), "factor"),
        (lambda: LengthDistribution.from_values([3]).quantile(2), "not a probability"),
    ],
)
def test_errors_say_what_to_write(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_tail_multiplier_is_the_mean_of_the_longest_over_the_mean() -> None:
    lengths = LengthDistribution.from_values([1, 3])
    assert lengths.tail_multiplier(1) == pytest.approx(1.0)
    assert lengths.tail_multiplier(2) == pytest.approx((0.25 * 1 + 0.75 * 3) / 2)
    wide = LengthDistribution.lognormal(300, 0.8, 4000)
    rng = np.random.default_rng(0)
    drawn = np.clip(np.rint(300 * np.exp(0.8 * rng.standard_normal((200_000, 8)))), 1, 4000)
    assert wide.tail_multiplier(8) == pytest.approx(drawn.max(axis=1).mean() / drawn.mean(), rel=5e-3)
    assert wide.resident_mean_tokens() == pytest.approx((drawn**2).mean() / 2 / drawn.mean(), rel=5e-3)


def test_scaling_keeps_the_cap_and_brings_back_what_the_cap_hid() -> None:
    short = LengthDistribution.lognormal(300, 1.0, 1000)
    for factor in (0.5, 2.0, 8.0):
        again = LengthDistribution.lognormal(300 * factor, 1.0, 1000)
        assert short.scaled(factor).mean() == pytest.approx(again.mean())
    assert short.scaled(2.0, scale_cap=True).cap_tokens == 2000
    assert short.scaled(2.0, scale_cap=True).mean() == pytest.approx(2 * short.mean(), rel=2e-3)
    values = LengthDistribution.from_values([2, 4, 10])
    assert values.scaled(2).support_tokens.tolist() == [4, 8, 10]
    assert values.scaled(2, scale_cap=True).support_tokens.tolist() == [4, 8, 20]
    assert values.scaled(0.5).support_tokens.tolist() == [1, 2, 5]
    assert values.scaled(0.01).support_tokens.tolist() == [1]
    for law in (
        LengthDistribution.from_quantiles({0.5: 900, 0.9: 3000}, 32768),
        LengthDistribution.from_histogram([(100, 1), (1000, 3)]),
    ):
        assert law.scaled(3, scale_cap=True).mean() == pytest.approx(3 * law.mean(), rel=5e-3)


def test_long_caps_keep_the_table_small_and_the_moments_right() -> None:
    lengths = LengthDistribution.lognormal(20_000, 1.0, 2_000_000)
    assert len(lengths.support_tokens) < 400_000
    assert lengths.mean() == pytest.approx(20_000 * math.exp(0.5), rel=1e-3)
    assert lengths.support_tokens[-1] <= 2_000_000


def test_draws_depend_on_seed_group_and_index_alone() -> None:
    lengths = LengthDistribution.lognormal(300, 0.8, 4000)
    table = lengths.sample(5, np.arange(100)[:, None], np.arange(8)[None, :])
    assert table.shape == (100, 8)
    assert table[17, 3] == lengths.sample(5, 17, 3)
    assert np.array_equal(table[50:], lengths.sample(5, np.arange(50, 100)[:, None], np.arange(8)[None, :]))
    assert not np.array_equal(table, lengths.sample(6, np.arange(100)[:, None], np.arange(8)[None, :]))


def test_draws_follow_the_distribution() -> None:
    for lengths in (
        LengthDistribution.lognormal(300, 0.8, 4000),
        LengthDistribution.from_values([1, 2, 3, 1000]),
        LengthDistribution.from_values([7]),
        LengthDistribution.from_histogram([(100, 1), (1000, 3)]),
    ):
        drawn = lengths.sample(1, np.arange(400_000), 2)
        assert drawn.mean() == pytest.approx(lengths.mean(), rel=0.01)
        assert (drawn.astype(float) ** 2).mean() == pytest.approx(lengths.second_moment(), rel=0.02)
        for p in (0.1, 0.5, 0.9, 0.99):
            share = (drawn <= lengths.quantile(p)).mean()
            assert share == pytest.approx(
                lengths.cumulative[lengths.support_tokens <= lengths.quantile(p)][-1], abs=4e-3
            )


def test_neighbouring_draws_are_independent() -> None:
    lengths = LengthDistribution.from_values(np.arange(1, 1001))
    table = lengths.sample(0, np.arange(20_000)[:, None], np.arange(4)[None, :]).astype(float)
    correlation = np.corrcoef(np.column_stack([table[:-1], table[1:]]).T)
    assert np.abs(correlation - np.eye(8)).max() < 0.03


def test_distributions_can_be_sent_to_other_processes() -> None:
    lengths = LengthDistribution.from_quantiles({0.5: 900, 0.9: 3000}, 32768)
    again = pickle.loads(pickle.dumps(lengths))
    assert np.array_equal(again.cumulative, lengths.cumulative)
    assert again.scaled(2).mean() == lengths.scaled(2).mean()


@pytest.mark.parametrize("cap", [300, 32768, 1_000_000])
def test_the_coarse_table_has_about_the_same_moments(cap: int) -> None:
    lengths = LengthDistribution.from_mean_cv(cap / 10, 1.1, cap)
    coarse = lengths.coarse
    assert len(coarse.support_tokens) <= 602
    assert coarse.cumulative[-1] == 1.0
    assert (np.diff(coarse.support_tokens) > 0).all()
    assert coarse.support_tokens[-1] == lengths.support_tokens[-1]
    assert coarse.mean() == pytest.approx(lengths.mean(), rel=1e-3)
    assert coarse.second_moment() == pytest.approx(lengths.second_moment(), rel=1e-3)
    assert coarse.tail_multiplier(16) == pytest.approx(lengths.tail_multiplier(16), rel=1e-3)


def test_a_mixture_has_the_moments_of_its_parts() -> None:
    short, long = LengthDistribution.lognormal(200, 0.4, 20_000), LengthDistribution.lognormal(5000, 0.5, 20_000)
    both = LengthDistribution.mixture([(3, short), (1, long)], 20_000)
    assert both.mean() == pytest.approx(0.75 * short.mean() + 0.25 * long.mean())
    assert both.second_moment() == pytest.approx(0.75 * short.second_moment() + 0.25 * long.second_moment())
    at = np.array([100.0, 1000.0, 8000.0])
    assert both.survival(at) == pytest.approx(0.75 * short.survival(at) + 0.25 * long.survival(at))
    assert LengthDistribution.mixture([(1, short)], 20_000).mean() == pytest.approx(short.mean())
    assert LengthDistribution.mixture([(0, long), (2, short)], 20_000).mean() == pytest.approx(short.mean())


def test_a_mixture_takes_laws_and_tables_and_keeps_smaller_caps() -> None:
    plain = LengthDistribution.from_values([100, 300])
    both = LengthDistribution.mixture([(0.5, plain), (0.5, LognormalLaw(2000.0, 0.5))], 8192)
    assert both.probabilities[both.support_tokens == 100] == pytest.approx(0.25, rel=1e-3)
    assert both.cap_tokens == 8192
    cut = LengthDistribution.lognormal(1000, 1.0, 1500)
    assert LengthDistribution.mixture([(1, cut)], 4000).support_tokens[-1] == 1500
    lifted = LengthDistribution.mixture([(1, LengthDistribution.lognormal(1000, 1.0, 4000))], 2000)
    assert lifted.mean() == pytest.approx(LengthDistribution.lognormal(1000, 1.0, 2000).mean())


def test_scaling_a_mixture_scales_each_part_under_the_cap() -> None:
    parts = [(0.6, LognormalLaw(200.0, 0.4)), (0.4, LognormalLaw(3000.0, 0.5))]
    both = LengthDistribution.mixture(parts, 8000).scaled(2.0)
    again = LengthDistribution.mixture([(w, law.scaled(2.0)) for w, law in parts], 8000)
    assert both.mean() == pytest.approx(again.mean())
    assert both.support_tokens[-1] == 8000


def test_extra_mass_sits_at_the_cap_and_stays_there_when_lengths_grow() -> None:
    plain = LengthDistribution.lognormal(300, 0.8, 4000)
    capped = LengthDistribution.lognormal(300, 0.8, 4000, cap_mass=0.05)
    assert capped.probabilities[-1] == pytest.approx(0.05 + 0.95 * plain.probabilities[-1])
    assert capped.mean() == pytest.approx(0.95 * plain.mean() + 0.05 * 4000)
    assert capped.scaled(0.25).probabilities[-1] == pytest.approx(0.05, abs=1e-6)
    assert capped.scaled(2.0, scale_cap=True).support_tokens[-1] == 8000
    flat = LengthDistribution.lognormal(300, 0.0, 4000, cap_mass=0.25)
    assert flat.support_tokens.tolist() == [300, 4000]
    assert flat.probabilities.tolist() == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.8, 1.0])
def test_the_longest_of_alike_responses(alike: float) -> None:
    lengths = LengthDistribution.lognormal(300, 0.8, 4000)
    rng = np.random.default_rng(0)
    z = math.sqrt(alike) * rng.standard_normal((100_000, 1)) + math.sqrt(1 - alike) * rng.standard_normal((100_000, 8))
    longest = np.clip(np.rint(300 * np.exp(0.8 * z)), 1, 4000).max(axis=1)
    assert lengths.max_mean(8, alike) == pytest.approx(longest.mean(), rel=0.01)
    assert lengths.tail_multiplier(8, alike) == pytest.approx(longest.mean() / lengths.mean(), rel=0.01)
    found = lengths.longest_of(8, alike)
    assert found.cumulative[-1] == 1.0
    for p in (0.1, 0.5, 0.9):
        assert found.quantile(p) == pytest.approx(np.quantile(longest, p), rel=0.03)


def test_the_longest_of_one_response_is_the_response() -> None:
    lengths = LengthDistribution.from_values([1, 2, 50])
    assert lengths.longest_of(1, 0.5).cumulative.tolist() == lengths.cumulative.tolist()
    assert lengths.longest_of(4).cumulative.tolist() == pytest.approx([(1 / 3) ** 4, (2 / 3) ** 4, 1.0])
    assert lengths.max_mean(2.5) == pytest.approx(50 - 48 * (2 / 3) ** 2.5 - (1 / 3) ** 2.5)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 64])
def test_powers_by_squaring_are_powers(size: int) -> None:
    lengths = LengthDistribution.lognormal(300, 0.8, 4000)
    weights = np.diff(lengths.cumulative ** float(size), prepend=0.0)
    assert lengths.max_mean(size) == pytest.approx(float(weights @ lengths.support_tokens))
