"""What ops compute for each channel, as polynomials whose coefficients are numbers.

Two formulas are the same if they agree at a point that was chosen at random, unless chance is against it (J. T. Schwartz, "Fast Probabilistic Algorithms for
Verification of Polynomial Identities", 1980). So whatever is the same for all data of a channel (its mean, its scale, the sum of its gradients) is one random
number here, and what differs from element to element is a polynomial in the data and in the gradient that comes back for them. However a graph spells a
formula, its value is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Monomial = tuple[int, int]
"""The powers of the data and of the gradient."""

Polynomial = Mapping[Monomial, float]

ONE, DATA, GRADIENT = (0, 0), (1, 0), (0, 1)

DEGREES = (2, 1)
"""The highest powers that are looked at: variances square the data, and what gradients do is linear in them."""

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
    return {ONE: number}


def number_of(value: Polynomial) -> float | None:
    """Returns what a polynomial is that depends on no data; None if it does."""
    return value.get(ONE, 0.0) if not any(power != ONE and size for power, size in value.items()) else None


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
    """Returns the product of two; None if a power is beyond `DEGREES`."""
    found: dict[Monomial, float] = {}
    for (x, dy), size in values[0].items():
        for (more_x, more_dy), factor in values[1].items():
            power = (x + more_x, dy + more_dy)
            if power[0] > DEGREES[0] or power[1] > DEGREES[1]:
                return None
            found[power] = found.get(power, 0.0) + size * factor
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


def _gradient_of_rsqrt(values: Sequence[Polynomial]) -> Polynomial | None:
    """Of y = x^-1/2 and the gradient for it (`RsqrtGrad` in TensorFlow's `cwise_ops.h`)."""
    y = number_of(values[0])
    return scale(values[1], -0.5 * y**3) if y is not None else None


ELEMENTWISE: Mapping[str, Callable[[Sequence[Polynomial]], Polynomial | None]] = {
    "Add": add,
    "AddN": add,
    "AddV2": add,
    "Div": divide,
    "Mul": multiply,
    "Neg": lambda values: scale(values[0], -1.0),
    "RealDiv": divide,
    "Reciprocal": _of_number(lambda number: 1.0 / number),
    "Rsqrt": _of_number(lambda number: number**-0.5),
    "RsqrtGrad": _gradient_of_rsqrt,
    "Sqrt": _of_number(math.sqrt),
    "Square": lambda values: multiply([values[0], values[0]]),
    "SquaredDifference": _square_of_difference,
    "Sub": subtract,
}
"""Op to what it makes of the polynomials that it reads; None where that is none."""
