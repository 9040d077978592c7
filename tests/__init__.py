"""Tests of tfmp. A package of its own, so that no other distribution's `tests` can take its place."""
