"""Pruners stop running trials early."""
