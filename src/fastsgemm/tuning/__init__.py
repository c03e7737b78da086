"""Finding the configs that are fastest on a device, and remembering them."""
