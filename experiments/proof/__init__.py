"""Does every strategy for eight devices compute the same numbers?"""
