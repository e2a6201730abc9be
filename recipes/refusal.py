"""The one exception for what a person can put right."""


class Refusal(Exception):
    """A job that cannot run as asked. The message says what is wrong and what to type instead."""
