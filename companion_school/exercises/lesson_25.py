"""Exercises of lesson 25: how good is it?"""

import itertools
import math

from companion_school.checking.exercise import Case, exercise

# 25.1


@exercise(
    "25.1",
    "Questions for two points",
    task="Compute how many questions it takes to measure a difference",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "The variance of one answer is share times (1 - share).",
        "The variances of two independent scores add up, and the variance of a mean is that of one answer divided by the number of questions.",
        "1.96 times the square root of the sum must be 0.02. Solve for the number of questions and round up.",
    ),
)
def questions_for_two_points():
    """Two models are each right on about 70 % of their questions. They answer different questions, but the same number
    of them. How many questions must each model answer so that 1.96 standard errors of the difference between their
    scores are at most two percentage points? Return an `int`.
    """
    ### BEGIN SOLUTION
    variance = 0.7 * 0.3
    return math.ceil(1.96**2 * 2 * variance / 0.02**2)
    ### END SOLUTION


@questions_for_two_points.cases
def _(draw):
    yield Case("the number of questions", ())


@questions_for_two_points.mistake("that is for one score: the variance of a difference is the sum of two variances")
def _():
    return math.ceil(1.96**2 * 0.7 * 0.3 / 0.02**2)


@questions_for_two_points.mistake("that is for one standard error, not 1.96 of them")
def _():
    return math.ceil(2 * 0.7 * 0.3 / 0.02**2)


@questions_for_two_points.mistake(
    "1.96 standard errors are two points, not one: the interval reaches that far to either side"
)
def _():
    return math.ceil(1.96**2 * 2 * 0.7 * 0.3 / 0.01**2)


@questions_for_two_points.mistake("the variance of an answer is 0.7 times 0.3, not 0.7")
def _():
    return math.ceil(1.96**2 * 2 * 0.7 / 0.02**2)


@questions_for_two_points.mistake(
    "the standard error is a square root: divide its square, the variance, by the number of questions"
)
def _():
    return math.ceil(1.96 * 2 * math.sqrt(0.7 * 0.3) / 0.02)


@questions_for_two_points.mistake("you assumed a share of one half; a share of 70 % has a smaller variance")
def _():
    return math.ceil(1.96**2 * 2 * 0.25 / 0.02**2)


@questions_for_two_points.mistake("round up: with one question fewer the interval is slightly too long")
def _():
    return math.floor(1.96**2 * 2 * 0.7 * 0.3 / 0.02**2)


@questions_for_two_points.variant
def _():
    count = 1
    while 1.96 * math.sqrt(2 * 0.7 * 0.3 / count) > 0.02:
        count += 1
    return count


@questions_for_two_points.variant
def _():
    return 4034


# 25.2

RULES = ("sum", "per byte", "prior")


@exercise(
    "25.2",
    "Which choice does the model pick?",
    task="Choose an answer by its log-likelihood",
    points=2,
    difficulty=2,
    minutes=10,
    hints=(
        "The rule `sum` takes the log-likelihoods as they are.",
        "The rule `per byte` divides each log-likelihood by the bytes of its own choice. Its text is in `choices`, and a letter may take more than one byte.",
        "The rule `prior` subtracts the prior, because a difference of logarithms is the logarithm of a ratio.",
    ),
)
def choose(choices, nats, prior, rule):
    """Given a question, a model assigns the log-likelihoods `nats` to the texts in `choices`; without the question, it
    assigns the log-likelihoods `prior` to them (both are lists of floats). Return the index of the choice that the
    model picks. If several tie, return the first. The `rule` is `"sum"`; `"per byte"`, which divides by the number of
    bytes of the choice in UTF-8; or `"prior"`, which picks the choice whose probability the question has raised by the
    largest factor.

    ```python
    >>> choose(["ab", "abcd"], [-1.6, -2.0], [-4.0, -9.0], "per byte")
    1
    ```

    ★
    - Raise a `ValueError` for lists of different lengths, an empty list, an empty choice or any other rule.
    """
    ### BEGIN SOLUTION
    if not len(choices) == len(nats) == len(prior) > 0 or not all(choices):
        raise ValueError(f"{choices}, {nats}, {prior}: expected lists of equal length, and no empty choice")
    if rule == "sum":
        scores = list(nats)
    elif rule == "per byte":
        scores = [nats[at] / len(choices[at].encode()) for at in range(len(nats))]
    elif rule == "prior":
        scores = [nats[at] - prior[at] for at in range(len(nats))]
    else:
        raise ValueError(f"rule={rule!r}: expected 'sum', 'per byte' or 'prior'")
    return scores.index(max(scores))
    ### END SOLUTION


@choose.cases
def _(draw):
    texts, nats, prior = ["three hundred", "three hundred and twelve", "thirty"], [-1.6, -1.9, -6.0], [-4.0, -9.0, -4.5]
    yield Case("the sum picks the short choice", (texts, nats, prior, "sum"))
    yield Case("per byte the long choice wins", (texts, nats, prior, "per byte"))
    yield Case("the question has raised the long choice most", (texts, nats, prior, "prior"))
    yield Case("letters of two bytes", (["aaaa", "éééé"], [-4.0, -6.0], [-1.0, -1.0], "per byte"))
    yield Case("words and bytes differ", (["a b c", "abcdefgh"], [-3.0, -4.0], [-1.0, -1.0], "per byte"))
    yield Case("the rule per byte does not use the prior", (["ab", "cd"], [-3.0, -3.5], [-1.0, -9.0], "per byte"))
    count = draw.whole(3, 6)
    texts = ["xyzuvw"[: draw.whole(1, 6)] for _ in range(count)]
    nats = [round(-8 * value, 3) for value in draw.uniform(count).tolist()]
    prior = [round(-20 * value, 3) for value in draw.uniform(count).tolist()]
    for rule in RULES:
        yield Case(f"drawn at random, {rule}", (texts, nats, prior, rule))
        yield Case(f"a tie: the first wins, {rule}", (["ab", "cd", "ef"], [-5.0, -2.0, -2.0], [-3.0] * 3, rule))
    yield Case("a single choice", (["ab"], [-5.0], [-2.0], "prior"))
    yield Case("an empty list is rejected", ([], [], [], "sum"), refuse=True)
    yield Case("one log-likelihood too few is rejected", (["ab", "cd"], [-1.0], [-1.0, -2.0], "sum"), refuse=True)
    yield Case("one prior too many is rejected", (["ab"], [-1.0], [-1.0, -2.0], "sum"), refuse=True)
    yield Case("an empty choice is rejected", (["ab", ""], [-1.0, -2.0], [-1.0, -2.0], "per byte"), refuse=True)
    yield Case("an unknown rule is rejected", (["ab", "cd"], [-1.0, -2.0], [-1.0, -2.0], "mean"), refuse=True)


def _fitting(choices, nats, prior, rule):
    if not len(choices) == len(nats) == len(prior) > 0 or not all(choices) or rule not in RULES:
        raise ValueError("expected lists of equal length without empty choices, and a known rule")


def _best(scores, pick=max):
    return scores.index(pick(scores))


def _by(choices, nats, prior, rule, size=lambda text: len(text.encode()), sign=-1):
    _fitting(choices, nats, prior, rule)
    if rule == "sum":
        return list(nats)
    if rule == "per byte":
        return [one / size(text) for one, text in zip(nats, choices, strict=True)]
    return [one + sign * before for one, before in zip(nats, prior, strict=True)]


@choose.mistake("you ignore the rule and always use the sum")
def _(choices, nats, prior, rule):
    _fitting(choices, nats, prior, rule)
    return _best(nats)


@choose.mistake("divide by bytes, not by characters: an é takes two")
def _(choices, nats, prior, rule):
    return _best(_by(choices, nats, prior, rule, size=len))


@choose.mistake("divide by bytes, not by words")
def _(choices, nats, prior, rule):
    return _best(_by(choices, nats, prior, rule, size=lambda text: len(text.split())))


@choose.mistake("subtract the prior: adding it favours what is probable without the question")
def _(choices, nats, prior, rule):
    return _best(_by(choices, nats, prior, rule, sign=1))


@choose.mistake("a log-likelihood is negative, and the largest is the one nearest to 0: take the maximum")
def _(*given):
    return _best(_by(*given), pick=min)


@choose.mistake("you multiplied by the bytes, so long choices lose even more: divide")
def _(choices, nats, prior, rule):
    return _best(_by(choices, nats, prior, rule, size=lambda text: 1 / len(text.encode())))


@choose.mistake("if several tie, return the first of them, not the last")
def _(*given):
    scores = _by(*given)
    return max(at for at, score in enumerate(scores) if score == max(scores))


@choose.mistake("lists of different lengths, an empty choice or any other rule must be rejected with a ValueError")
def _(choices, nats, prior, rule):
    count = min(len(choices), len(nats), len(prior))
    if not count:
        return 0
    known = rule if rule in RULES else "sum"
    return _best(_by([text or "x" for text in choices[:count]], nats[:count], prior[:count], known))


@choose.variant
def _(choices, nats, prior, rule):
    # Use a loop that remembers the best choice so far
    _fitting(choices, nats, prior, rule)
    best, at = -math.inf, 0
    for i, text in enumerate(choices):
        score = nats[i]
        if rule == "per byte":
            score /= len(bytes(text, "utf-8"))
        if rule == "prior":
            score -= prior[i]
        if score > best:
            best, at = score, i
    return at


@choose.variant
def _(choices, nats, prior, rule):
    # Sort the choices, which keeps ties in order
    scores = _by(choices, nats, prior, rule)
    return sorted(range(len(scores)), key=lambda i: -scores[i])[0]


# 25.3


@exercise(
    "25.3",
    "One right answer in k",
    task="Estimate pass@k without bias",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"k": lambda counts, drawn, k: (1, drawn)},
    hints=(
        "A choice of k answers fails if all of them are among the wrong ones.",
        "There are comb(drawn, k) choices of k answers, and comb(wrong, k) of them fail.",
        "Compute the share for each question first, and take the mean over questions last.",
    ),
)
def mean_pass_at_k(counts, drawn, k):
    """For each question, `drawn` answers were sampled, and the list `counts` says how many of them are right. For each
    question, the unbiased estimate of pass@k is the share of all selections of `k` of the drawn answers that contain a
    right one. Return the mean of these estimates over all questions.

    ```python
    >>> mean_pass_at_k([1, 0], 4, 2)
    0.25
    ```

    ★
    - Raise a `ValueError` for an empty list, a count below 0 or above `drawn`, or a `k` below 1 or above `drawn`.
    - Thousands of drawn answers must not cause an overflow.
    """
    ### BEGIN SOLUTION
    if not counts or not 1 <= k <= drawn or not all(0 <= right <= drawn for right in counts):
        raise ValueError(f"counts={counts}, drawn={drawn}, k={k}: expected counts from 0 to drawn, k from 1 to drawn")
    total = 0.0
    for right in counts:
        fails = 1.0  # the product of (wrong - i) / (drawn - i)
        for i in range(k):
            fails *= max(0, drawn - right - i) / (drawn - i)
        total += 1 - fails
    return total / len(counts)
    ### END SOLUTION


@mean_pass_at_k.cases
def _(draw):
    yield Case("one right answer of four, two tries", ([1], 4, 2))
    yield Case("no right answer", ([0], 5, 3))
    yield Case("all are right", ([5], 5, 2))
    yield Case("one try is the share of right answers", ([1, 3, 4], 8, 1))
    yield Case("as many tries as answers", ([0, 1, 2], 6, 6))
    yield Case("fewer wrong answers than tries", ([4, 1], 6, 3))
    drawn = draw.whole(8, 20)
    counts = draw.wholes(0, drawn, 6).tolist()
    yield Case("several questions", (counts, drawn, draw.whole(2, 5)))
    yield Case("two questions with unequal counts", ([1, drawn - 2], drawn, 3))
    yield Case("three thousand answers", ([draw.whole(5, 90), 2], 3000, 1200), robust="samples of this size are rare")
    yield Case("zero questions are rejected", ([], 4, 2), refuse=True)
    yield Case("a count above drawn is rejected", ([1, 5], 4, 2), refuse=True)
    yield Case("a negative count is rejected", ([-1], 4, 2), refuse=True)
    yield Case("k of 0 is rejected", ([1], 4, 0), refuse=True)
    yield Case("k above drawn is rejected", ([1], 4, 5), refuse=True)


def _sound(counts, drawn, k):
    if not counts or not 1 <= k <= drawn or not all(0 <= right <= drawn for right in counts):
        raise ValueError("counts, drawn, k")


@mean_pass_at_k.mistake("1 - (1 - share)^k samples with replacement, so it is too small on average")
def _(counts, drawn, k):
    _sound(counts, drawn, k)
    return sum(1 - (1 - right / drawn) ** k for right in counts) / len(counts)


@mean_pass_at_k.mistake("that is the probability that all k answers are right")
def _(counts, drawn, k):
    _sound(counts, drawn, k)
    return sum(math.comb(right, k) / math.comb(drawn, k) for right in counts) / len(counts)


@mean_pass_at_k.mistake("that is the probability that all k answers are wrong: subtract it from 1")
def _(counts, drawn, k):
    _sound(counts, drawn, k)
    return sum(math.comb(drawn - right, k) / math.comb(drawn, k) for right in counts) / len(counts)


@mean_pass_at_k.mistake(
    "take the mean over questions last: the estimate of a mean count is not the mean of the estimates"
)
def _(counts, drawn, k):
    _sound(counts, drawn, k)
    right = sum(counts) / len(counts)
    return 1 - math.prod(max(0.0, drawn - right - i) / (drawn - i) for i in range(k))


@mean_pass_at_k.mistake("that is the sum over questions: divide by their number")
def _(counts, drawn, k):
    _sound(counts, drawn, k)
    return float(sum(1 - math.comb(drawn - right, k) / math.comb(drawn, k) for right in counts))


@mean_pass_at_k.mistake("for every k you return pass@1, the share of right answers")
def _(counts, drawn, k):
    _sound(counts, drawn, k)
    return sum(counts) / drawn / len(counts)


@mean_pass_at_k.mistake("k times the share counts a selection with two right answers twice")
def _(counts, drawn, k):
    _sound(counts, drawn, k)
    return sum(min(1.0, k * right / drawn) for right in counts) / len(counts)


@mean_pass_at_k.mistake("an empty list and impossible numbers must be rejected with a ValueError")
def _(counts, drawn, k):
    k = min(max(k, 1), drawn)
    found = [min(max(right, 0), drawn) for right in counts] or [0]
    return sum(1 - math.comb(drawn - right, k) / math.comb(drawn, k) for right in found) / len(found)


@mean_pass_at_k.variant
def _(counts, drawn, k):
    _sound(counts, drawn, k)
    every = math.comb(drawn, k)
    return sum((every - math.comb(drawn - right, k)) / every for right in counts) / len(counts)


@mean_pass_at_k.variant
def _(counts, drawn, k):
    # Compute a product over the wrong answers, as in Chen et al. (2021)
    _sound(counts, drawn, k)
    found = []
    for right in counts:
        if drawn - right < k:
            found.append(1.0)
        else:
            found.append(1 - math.prod(1 - k / i for i in range(drawn - right + 1, drawn + 1)))
    return math.fsum(found) / len(found)


# 25.4


@exercise(
    "25.4",
    "Two models, the same questions",
    task="Test a paired difference",
    points=3,
    difficulty=3,
    minutes=15,
    hints=(
        "Questions that both models get right, or both get wrong, do not tell you which model is better.",
        "If neither is better, each question where they differ is a coin toss. How probable is it that heads come up at least as often as the better model won?",
        "Either model could have been the better one, so double the probability, but return at most 1.",
    ),
)
def compare(first, second):
    """Two models answered the same questions: the lists of booleans `first` and `second` say which answers were right,
    in the same order. Return `(difference, p_value)`: the first model's accuracy minus the second's, and the p-value of
    McNemar's exact test. Toss a fair coin for each question where exactly one model is right: the p-value is twice the
    probability that heads come up at least as often as the better model was right on these questions, but at most 1.

    ```python
    >>> compare([True, True, True, False], [False, False, True, False])
    (0.5, 0.5)
    ```

    ★
    - Raise a `ValueError` for lists of different lengths or empty lists.
    """
    ### BEGIN SOLUTION
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} answers: expected the same number in both, and at least one")
    wins = sum(first[at] and not second[at] for at in range(len(first)))
    losses = sum(second[at] and not first[at] for at in range(len(first)))
    tosses = wins + losses
    tail = sum(math.comb(tosses, heads) for heads in range(max(wins, losses), tosses + 1))
    return (wins - losses) / len(first), min(1.0, 2 * tail / 2**tosses)
    ### END SOLUTION


def _answers(draw, both, only_first, only_second, neither):
    pairs = [(True, True)] * both + [(True, False)] * only_first
    pairs += [(False, True)] * only_second + [(False, False)] * neither
    mixed = [pairs[at] for at in draw.shuffled(len(pairs)).tolist()]
    return [one for one, _ in mixed], [two for _, two in mixed]


@compare.cases
def _(draw):
    yield Case("nine wins and two losses", _answers(draw, 20, 9, 2, 7))
    yield Case("two wins and nine losses", _answers(draw, 20, 2, 9, 7))
    yield Case("as many wins as losses", _answers(draw, 5, 3, 3, 4))
    yield Case("the models never differ", _answers(draw, 6, 0, 0, 2))
    yield Case("one win", _answers(draw, 3, 1, 0, 2))
    yield Case("many more questions on which the models agree", _answers(draw, 150, 9, 2, 60))
    a, b = draw.whole(4, 14), draw.whole(1, 8)
    yield Case("drawn at random", _answers(draw, draw.whole(3, 30), a, b, draw.whole(3, 30)))
    yield Case("the models differ on every question", _answers(draw, 0, a, b, 0))
    yield Case("lists of different lengths are rejected", ([True, False], [True]), refuse=True)
    yield Case("no answers are rejected", ([], []), refuse=True)


def _pairs(first, second):
    if len(first) != len(second) or not first:
        raise ValueError("first, second")
    pairs = list(zip(first, second, strict=True))
    return pairs.count((True, False)), pairs.count((False, True)), len(first)


def _tail(most, tosses):
    return sum(math.comb(tosses, heads) for heads in range(most, tosses + 1)) / 2**tosses


@compare.mistake("that is one-sided: either model could have been the better one, so double it")
def _(first, second):
    wins, losses, count = _pairs(first, second)
    return (wins - losses) / count, _tail(max(wins, losses), wins + losses)


@compare.mistake("a probability is at most 1, but if wins equal losses, the doubled tail is above 1")
def _(first, second):
    wins, losses, count = _pairs(first, second)
    return (wins - losses) / count, 2 * _tail(max(wins, losses), wins + losses)


@compare.mistake("questions where both agree are not coin tosses: leave them out")
def _(first, second):
    wins, losses, count = _pairs(first, second)
    extra = (count - wins - losses) // 2
    return (wins - losses) / count, min(1.0, 2 * _tail(max(wins, losses) + extra, count))


@compare.mistake("at least as often includes equally often: your tail begins one win too late")
def _(first, second):
    wins, losses, count = _pairs(first, second)
    return (wins - losses) / count, min(1.0, 2 * _tail(max(wins, losses) + 1, wins + losses))


@compare.mistake("that is the probability of exactly this many wins: add those of all more extreme outcomes")
def _(first, second):
    wins, losses, count = _pairs(first, second)
    return (wins - losses) / count, min(1.0, 2 * math.comb(wins + losses, wins) / 2 ** (wins + losses))


@compare.mistake("you returned the second minus the first: return the first minus the second")
def _(first, second):
    wins, losses, count = _pairs(first, second)
    return (losses - wins) / count, min(1.0, 2 * _tail(max(wins, losses), wins + losses))


@compare.mistake("the difference is a share of all questions, not only of those where the models differ")
def _(first, second):
    wins, losses, _ = _pairs(first, second)
    return (wins - losses) / max(1, wins + losses), min(1.0, 2 * _tail(max(wins, losses), wins + losses))


@compare.mistake("that is the normal approximation, which is wrong for few questions: count the tosses exactly")
def _(first, second):
    wins, losses, count = _pairs(first, second)
    z = abs(wins - losses) / math.sqrt(max(1, wins + losses))
    return (wins - losses) / count, math.erfc(z / math.sqrt(2))


@compare.mistake("you used the tail of the first model's wins: use the model that won more often")
def _(first, second):
    wins, losses, count = _pairs(first, second)
    return (wins - losses) / count, min(1.0, 2 * _tail(wins, wins + losses))


@compare.mistake("lists of different lengths, and empty ones, must be rejected with a ValueError")
def _(first, second):
    count = min(len(first), len(second))
    if not count:
        return 0.0, 1.0
    wins, losses, count = _pairs(first[:count], second[:count])
    return (wins - losses) / count, min(1.0, 2 * _tail(max(wins, losses), wins + losses))


@compare.variant
def _(first, second):
    # Count the outcomes of the coin tosses by their distance from the middle
    wins, losses, count = _pairs(first, second)
    tosses, gap = wins + losses, abs(wins - losses)
    extreme = sum(math.comb(tosses, heads) for heads in range(tosses + 1) if abs(2 * heads - tosses) >= gap)
    return sum(first) / count - sum(second) / count, extreme / 2**tosses


@compare.variant
def _(first, second):
    # Build the distribution of wins, one toss at a time
    wins, losses, count = _pairs(first, second)
    chances = [1.0]
    for _ in range(wins + losses):
        halves = [chance / 2 for chance in chances]
        chances = [a + b for a, b in zip([*halves, 0.0], [0.0, *halves], strict=True)]
    return (wins - losses) / count, min(1.0, 2 * sum(chances[max(wins, losses) :]))


# 25.5


@exercise(
    "25.5",
    "Sure, and right?",
    task="Compute the expected calibration error",
    points=2,
    difficulty=2,
    minutes=15,
    limits={"bins": (1,)},
    hints=(
        "The bin of a confidence is the integer part of confidence times bins, but at most bins - 1.",
        "For each bin compare the mean confidence with the share of right answers.",
        "Weight each bin by its share of all questions. Bins without questions add nothing.",
    ),
)
def calibration_error(confidences, right, bins):
    """For each question, the list `confidences` says how sure a model was (from 0 to 1), and the list `right` says whether it was right. Return the
    expected calibration error with `bins` bins of equal width: for each question, take the distance between the mean
    confidence and the share of right answers in its bin, and average it over all questions. A confidence on the border
    between two bins belongs to the upper bin, and a confidence of 1 to the last bin.

    ```python
    >>> calibration_error([0.75, 0.75, 0.25], [True, False, False], 2)
    0.25
    ```

    ★
    - Raise a `ValueError` for lists of different lengths, empty lists, a confidence outside the range from 0 to 1, or
      `bins < 1`.
    """
    ### BEGIN SOLUTION
    if len(confidences) != len(right) or not right or bins < 1 or not all(0 <= one <= 1 for one in confidences):
        raise ValueError(
            f"confidences={confidences}, right={right}, bins={bins}: expected equal lengths and confidences from 0 to 1"
        )
    gaps = [0.0] * bins
    for at in range(len(right)):
        gaps[min(int(confidences[at] * bins), bins - 1)] += confidences[at] - right[at]
    return sum(abs(gap) for gap in gaps) / len(right)
    ### END SOLUTION


@calibration_error.cases
def _(draw):
    yield Case("two bins", ([0.75, 0.75, 0.25], [True, False, False], 2))
    yield Case("always sure and always right", ([1.0, 1.0], [True, True], 4))
    yield Case("always sure and always wrong", ([1.0, 1.0], [False, False], 4))
    yield Case("sure of being wrong", ([0.0, 0.0, 0.625], [False, True, True], 4))
    yield Case("certainty belongs to the last bin", ([1.0, 0.875, 0.875], [True, False, True], 4))
    yield Case("a border belongs to the upper bin", ([0.5, 0.625, 0.25, 0.125], [False, True, True, False], 4))
    yield Case("errors of opposite signs cancel within a bin", ([0.5, 0.75], [True, False], 1))
    yield Case("errors of opposite signs do not cancel between bins", ([0.25, 0.75], [True, False], 2))
    yield Case("bins of unequal size", ([0.9] * 6 + [0.3], [True] * 3 + [False] * 3 + [True], 5))
    count = draw.whole(12, 20)
    sure = [(2 * value + 1) / 512 for value in draw.wholes(0, 255, count).tolist()]
    right = [value < one for value, one in zip(draw.uniform(count).tolist(), sure, strict=True)]
    yield Case("drawn at random", (sure, right, 10))
    yield Case("one bin compares the means", (sure, right, 1))
    yield Case("more bins than questions", (sure, right, 50))
    yield Case("zero questions are rejected", ([], [], 2), refuse=True)
    yield Case("lists of different lengths are rejected", ([0.5], [True, False], 2), refuse=True)
    yield Case("a confidence above 1 is rejected", ([0.5, 1.5], [True, False], 2), refuse=True)
    yield Case("a negative confidence is rejected", ([-0.5], [True], 2), refuse=True)
    yield Case("zero bins are rejected", ([0.5], [True], 0), refuse=True)


def _valid(confidences, right, bins):
    sound = len(confidences) == len(right) > 0 and bins >= 1 and all(0 <= one <= 1 for one in confidences)
    if not sound:
        raise ValueError("confidences, right, bins")


def _binned(confidences, right, bins, *, top=True, ceil=False):
    """Return the questions in each nonempty bin."""
    _valid(confidences, right, bins)
    found: dict[int, list] = {}
    for one, hit in zip(confidences, right, strict=True):
        at = math.ceil(one * bins) - 1 if ceil else int(one * bins)
        if top or at < bins:
            found.setdefault(min(at, bins - 1), []).append((one, hit))
    return list(found.values())


def _gap(bin):
    return abs(sum(one - hit for one, hit in bin)) / len(bin)


@calibration_error.mistake("that is the plain mean over bins: weight each by its share of the questions")
def _(confidences, right, bins):
    gaps = [_gap(bin) for bin in _binned(confidences, right, bins)]
    return sum(gaps) / len(gaps)


@calibration_error.mistake("that is the largest gap of a bin, the maximum calibration error")
def _(confidences, right, bins):
    return max(_gap(bin) for bin in _binned(confidences, right, bins))


@calibration_error.mistake("do not square the distance: that is closer to the Brier score")
def _(confidences, right, bins):
    return sum(len(bin) * _gap(bin) ** 2 for bin in _binned(confidences, right, bins)) / len(right)


@calibration_error.mistake("take the distance for each bin, not for each question: within a bin errors cancel")
def _(confidences, right, bins):
    _valid(confidences, right, bins)
    return sum(abs(one - hit) for one, hit in zip(confidences, right, strict=True)) / len(right)


@calibration_error.mistake("gaps of different bins must not cancel: take absolute values before you add")
def _(confidences, right, bins):
    _valid(confidences, right, bins)
    return abs(sum(one - hit for one, hit in zip(confidences, right, strict=True))) / len(right)


@calibration_error.mistake("a confidence of exactly 1 falls outside your bins: it belongs to the last one")
def _(confidences, right, bins):
    return sum(len(bin) * _gap(bin) for bin in _binned(confidences, right, bins, top=False)) / len(right)


@calibration_error.mistake("a confidence on a border belongs to the upper bin")
def _(confidences, right, bins):
    return sum(len(bin) * _gap(bin) for bin in _binned(confidences, right, bins, ceil=True)) / len(right)


@calibration_error.mistake("the bins have equal width, not equal numbers of questions")
def _(confidences, right, bins):
    _valid(confidences, right, bins)
    both = sorted(zip(confidences, right, strict=True))
    edges = [round(at * len(both) / bins) for at in range(bins + 1)]
    parts = [both[low:high] for low, high in itertools.pairwise(edges) if high > low]
    return sum(len(bin) * _gap(bin) for bin in parts) / len(both)


@calibration_error.mistake("an empty list and impossible numbers must be rejected with a ValueError")
def _(confidences, right, bins):
    count = min(len(confidences), len(right))
    if not count:
        return 0.0
    sure = [min(max(one, 0.0), 1.0) for one in confidences[:count]]
    return sum(len(bin) * _gap(bin) for bin in _binned(sure, right[:count], max(bins, 1))) / count


@calibration_error.variant
def _(confidences, right, bins):
    # Process one bin at a time
    _valid(confidences, right, bins)
    total = 0.0
    for at in range(bins):
        inside = [i for i, one in enumerate(confidences) if at <= one * bins < at + 1 or (at == bins - 1 and one == 1)]
        if inside:
            mean = sum(confidences[i] for i in inside) / len(inside)
            share = sum(right[i] for i in inside) / len(inside)
            total += len(inside) / len(right) * abs(mean - share)
    return total


@calibration_error.variant
def _(confidences, right, bins):
    # Collect the sums for each bin in a dictionary
    _valid(confidences, right, bins)
    sums: dict[int, tuple[float, int]] = {}
    for one, hit in zip(confidences, right, strict=True):
        at = min(math.floor(one * bins), bins - 1)
        sure, hits = sums.get(at, (0.0, 0))
        sums[at] = sure + one, hits + hit
    return math.fsum(abs(sure - hits) for sure, hits in sums.values()) / len(right)
