"""The first steps of training, the start, which several methods share.

With a few labels per class, pseudo labels of the first steps are wrong, and learning from them confirms them. Two kinds
of first steps help. Beside the method: labelled images are learned in weak and strong views, a head learns to predict
the quarter turn of rotated images, and pseudo labels count only after a warm-up. Before the method, in phases of their
own: features are learned by contrast, then labels are propagated over neighbours.
"""

from aggmatch.methods.start.method import StartingMethod, StartSettings

__all__ = ["StartSettings", "StartingMethod"]
