"""Tests of tfmp.numerics."""
