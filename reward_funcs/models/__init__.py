"""Rewards that are models: the only part of this room that loads torch, and only when one is used."""
