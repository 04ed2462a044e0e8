"""A small trainer in NumPy and the experiments that show what a checkpoint must contain and survive.

``python -m resilient_launch.examples.article`` runs them; ``resilient_launch.examples.article.train`` is the training.
"""
