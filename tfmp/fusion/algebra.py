"""What ops compute within one group of data, as polynomials whose coefficients are numbers.

A group is what has a mean and a variance of its own: a channel of all examples, or the row of one. Two formulas are the same if they agree at a point that was
chosen at random, unless chance is against it (J. T. Schwartz, "Fast Probabilistic Algorithms for Verification of Polynomial Identities", 1980). So whatever is
the same for all data of a group is one random number here, and what differs from element to element is a polynomial in symbols: the data, the gradient that
comes back for them, and weights. However a graph spells a formula, its value is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Monomial = tuple[int, ...]
"""Symbols that are multiplied, in ascending order, each as often as its power."""

Polynomial = Mapping[Monomial, float]

X, DY, WEIGHTS = 0, 1, 2
"""The symbols: the data, the gradient for what is made of them, and from this number on weights."""

DEGREE = 4
"""The highest degree that is looked at: a variance squares the data, and a gradient has one more factor of each kind."""

CLOSE = 1e-6
"""How near two numbers are, relatively, that count as one: constants in a graph are rounded to float32."""


def same(first: float, second: float) -> bool:
    """Returns whether two coefficients are one, up to the rounding of constants."""
    return math.isclose(first, second, rel_tol=CLOSE, abs_tol=1e-12)


def alike(first: Polynomial, second: Polynomial) -> bool:
    """Returns whether two polynomials are one, up to the rounding of constants."""
    return all(same(first.get(power, 0.0), second.get(power, 0.0)) for power in {*first, *second})


def constant(number: float) -> Polynomial:
    """Returns the polynomial that is `number`, whatever the data."""
    return {(): number}


def number_of(value: Polynomial) -> float | None:
    """Returns what a polynomial is that is the same for all data of a group; None if it is not."""
    return value.get((), 0.0) if not any(power and size for power, size in value.items()) else None


def add(values: Sequence[Polynomial]) -> Polynomial:
    """Returns the sum."""
    found: dict[Monomial, float] = {}
    for value in values:
        for power, size in value.items():
            found[power] = found.get(power, 0.0) + size
    return found


def scale(value: Polynomial, factor: float) -> Polynomial:
    """Returns `factor` times `value`."""
    return {power: size * factor for power, size in value.items()}


def subtract(values: Sequence[Polynomial]) -> Polynomial:
    """Returns the first less the second."""
    return add([values[0], scale(values[1], -1.0)])


def multiply(values: Sequence[Polynomial]) -> Polynomial | None:
    """Returns the product of two; None if it is of a degree beyond `DEGREE`."""
    found: dict[Monomial, float] = {}
    for power, size in values[0].items():
        for other, factor in values[1].items():
            both = tuple(sorted((*power, *other))) if power and other else power or other
            if len(both) > DEGREE:
                return None
            found[both] = found.get(both, 0.0) + size * factor
    return found


def divide(values: Sequence[Polynomial]) -> Polynomial | None:
    """Returns the first by the second, which must be a number other than 0; else None."""
    divisor = number_of(values[1])
    return scale(values[0], 1.0 / divisor) if divisor else None


def _square_of_difference(values: Sequence[Polynomial]) -> Polynomial | None:
    difference = subtract(values)
    return multiply([difference, difference])


def _of_number(function: Callable[[float], float]) -> Callable[[Sequence[Polynomial]], Polynomial | None]:
    def image(values: Sequence[Polynomial]) -> Polynomial | None:
        number = number_of(values[0])
        return constant(function(number)) if number is not None and number > 0 else None

    return image


def _by_result(derivative: Callable[[float], float]) -> Callable[[Sequence[Polynomial]], Polynomial | None]:
    """Of y, a function of one number, and the gradient for it: the gradient for that number; `derivative` is of the function, in terms of y."""

    def image(values: Sequence[Polynomial]) -> Polynomial | None:
        y = number_of(values[0])
        return scale(values[1], derivative(y)) if y else None

    return image


ELEMENTWISE: Mapping[str, Callable[[Sequence[Polynomial]], Polynomial | None]] = {
    "Add": add,
    "AddN": add,
    "AddV2": add,
    "Div": divide,
    "Mul": multiply,
    "Neg": lambda values: scale(values[0], -1.0),
    "RealDiv": divide,
    "Reciprocal": _of_number(lambda number: 1.0 / number),
    "ReciprocalGrad": _by_result(lambda y: -y * y),
    "Rsqrt": _of_number(lambda number: number**-0.5),
    "RsqrtGrad": _by_result(lambda y: -0.5 * y**3),
    "Sqrt": _of_number(math.sqrt),
    "SqrtGrad": _by_result(lambda y: 0.5 / y),
    "Square": lambda values: multiply([values[0], values[0]]),
    "SquaredDifference": _square_of_difference,
    "Sub": subtract,
}
"""Op to what it makes of the polynomials that it reads; None where that is none. (Gradients of functions of one number: TensorFlow's `cwise_ops.h`.)"""
