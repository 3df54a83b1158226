"""Small distributed programs, most of them deliberately broken, and the verdict that each must get (see ``catalogue``)."""
