"""Reports for people: what was found, why it is the best, and what to do when nothing fits. All
of it is made with rich.
"""
