"""Recipes: one policy per question, as objects and as text."""
